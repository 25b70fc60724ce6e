"""What every controller must do."""

from hypothesis import given
from hypothesis import strategies as st

from engine.configuration import MAX_DRAFT
from engine.speculation.controller import Controller, RoundOutcome


class ControllerContract:
    """Subclasses give `make`, a function that makes a fresh controller."""

    def make(self) -> Controller:
        raise AssertionError("a subclass says which controller")

    def test_a_fresh_controller_drafts_and_says_why(self) -> None:
        controller = self.make()
        assert 1 <= controller.length <= MAX_DRAFT
        assert controller.reason

    @given(st.lists(st.tuples(st.integers(0, MAX_DRAFT), st.integers(0, MAX_DRAFT)), max_size=200))
    def test_its_length_stays_within_the_limits(self, rounds: list[tuple[int, int]]) -> None:
        controller = self.make()
        for wanted, right in rounds:
            n_drafted = min(wanted, controller.length)
            n_accepted = min(right, n_drafted)
            n_examined = min(n_accepted + 1, n_drafted)
            controller.observe(RoundOutcome(n_drafted, n_examined, n_accepted, n_accepted + 1))
            assert 0 <= controller.length <= MAX_DRAFT
            assert controller.reason
