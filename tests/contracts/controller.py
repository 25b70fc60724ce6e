"""What every controller must do."""

import random

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

    def test_its_length_stays_within_the_limits(self) -> None:
        rng = random.Random(4)
        for _ in range(200):
            controller = self.make()
            luck = rng.random()
            for _ in range(100):
                n_drafted = rng.randint(0, controller.length)
                n_accepted = sum(rng.random() < luck for _ in range(n_drafted))
                n_examined = min(n_accepted + 1, n_drafted)
                controller.observe(RoundOutcome(n_drafted, n_examined, n_accepted, n_accepted + 1))
                assert 0 <= controller.length <= MAX_DRAFT
                assert controller.reason
