from engine.speculation.controller import Controller, FixedController
from tests.contracts.controller import ControllerContract
from tests.support.rounds import a_round


class TestFixed(ControllerContract):
    drafts_at_once = True

    def make(self) -> Controller:
        return FixedController(4)


def test_fixed_stays() -> None:
    controller = FixedController(4)
    for _ in range(50):
        controller.observe(a_round(4, 1, 0, 1))
    assert controller.length == 4
