from engine.speculation.controller import Controller, FixedController, RoundOutcome
from tests.contracts.controller import ControllerContract


class TestFixed(ControllerContract):
    drafts_at_once = True

    def make(self) -> Controller:
        return FixedController(4)


def test_fixed_stays() -> None:
    controller = FixedController(4)
    for _ in range(50):
        controller.observe(RoundOutcome(4, 1, 0, 1))
    assert controller.length == 4
