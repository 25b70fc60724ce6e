"""What every controller must do."""

import random

from engine.configuration import MAX_DRAFT
from engine.speculation.controller import Controller
from engine.speculation.predictors.base import DraftToken
from tests.support.rounds import a_round


class ControllerContract:
    """Subclasses give `make`, a function that makes a fresh controller."""

    drafts_at_once: bool
    """Whether the first round drafts already, or measures."""

    def make(self) -> Controller:
        raise AssertionError("a subclass defines the controller")

    def test_a_fresh_controller_has_a_length_and_a_reason(self) -> None:
        controller = self.make()
        assert (controller.length > 0) == self.drafts_at_once
        assert controller.wants("s") == self.drafts_at_once
        assert controller.reason

    def test_no_more_is_verified_than_was_pulled(self) -> None:
        controller = self.make()
        controller.wants("s")
        assert controller.n_to_verify([DraftToken(1, 0.5)]) <= 1

    def test_its_length_stays_within_the_limits(self) -> None:
        rng = random.Random(4)
        for _ in range(200):
            controller = self.make()
            luck = rng.random()
            for _ in range(100):
                n_drafted = rng.randint(0, controller.length)
                n_accepted = sum(rng.random() < luck for _ in range(n_drafted))
                n_examined = min(n_accepted + 1, n_drafted)
                n_emitted = n_accepted + 1
                controller.observe(a_round(n_drafted, n_examined, n_accepted, n_emitted))
                assert 0 <= controller.length <= MAX_DRAFT
                assert controller.reason
