"""A planner that remembers what it has computed."""

from collections import OrderedDict

from app.planning.plan import Planner, Setup
from engine.configuration import Configuration
from engine.events import BufferSize
from engine.memory.estimate import Estimate
from engine.memory.fit import Estimator

MAX_ESTIMATES = 4096
"""About 20 MB of estimates: the table and the what-ifs of some hundred turns of a knob."""

Base = tuple[str, tuple[int, ...], tuple[str, ...], int | None, str | None]
"""Program and machine: what an estimate depends on beside its configuration."""


class RememberingPlanner(Planner):
    """Plans as `Planner` does, and asks for no estimate twice: for a screen with a table."""

    def __init__(self, *, loaded: tuple[BufferSize, ...] = ()) -> None:
        super().__init__(loaded=loaded)
        self._estimates: OrderedDict[tuple[Base, Configuration], Estimate] = OrderedDict()

    def take_headers(self, other: Planner) -> None:
        """Know what another planner has read."""
        self._models |= other._models
        self._files |= other._files

    def estimator(self, setup: Setup) -> Estimator:
        """Give the cost of other configurations of the same models and devices."""
        cost = super().estimator(setup)
        base = (setup.target, setup.vram_bytes, setup.cards, setup.ram_bytes, setup.cpu)

        def remembered(configuration: Configuration) -> Estimate:
            key = (base, configuration)
            found = self._estimates.get(key)
            if found is None:
                found = self._estimates[key] = cost(configuration)
                if len(self._estimates) > MAX_ESTIMATES:
                    self._estimates.popitem(last=False)
            return found

        return remembered
