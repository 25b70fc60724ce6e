"""What replies draft with: the predictors and the automatic rule, one set for each at a time."""

from dataclasses import dataclass

from engine.backends.base import Backend
from engine.configuration import PredictorName
from engine.errors import PredictorError
from engine.speculation.auto import AutoController
from engine.speculation.costs import Costs
from engine.speculation.predictors.base import Busy, DisabledPredictor, Predictor
from engine.speculation.registry import Registry


@dataclass(slots=True, eq=False)
class Drafting:
    """The predictors and the rule of one reply; both have learned from replies before it."""

    registry: Registry
    auto: AutoController
    owner: str = ""
    """Whose reply it drafted for last: its predictors have read that chat."""


class DraftingPool:
    """Gives each reply under way a set of its own: predictors keep the line that they have read.

    The draft model, or a predictor that the session was given, goes with the first set: they have
    one line each, so a reply beside another that has them drafts from the text only.
    """

    def __init__(
        self,
        backend: Backend,
        draft_backend: Backend | None,
        disabled_predictor: DisabledPredictor | None,
        costs: Costs,
        custom: Predictor | None,
    ) -> None:
        """With the set that the first reply takes."""
        self._backend = backend
        self._disabled_predictor = disabled_predictor
        self._costs = costs
        self.first = Drafting(
            Registry(backend, draft_backend, disabled_predictor, custom), AutoController(costs)
        )
        single = ((PredictorName.DRAFT, draft_backend), (PredictorName.CUSTOM, custom))
        self._of_first = frozenset(name for name, one in single if one is not None)
        self._all = [self.first]
        self._free = [self.first]

    def take(self, owner: str) -> Drafting:
        """A set that nobody has: the one that read this owner's chat before, if there is one."""
        if not self._free:
            self._free.append(self._made())
        first_made = min(self._free, key=self._all.index)
        drafting = next((one for one in self._free if owner and one.owner == owner), first_made)
        if self._of_first and self.first in self._free:
            drafting = self.first
        self._free.remove(drafting)
        drafting.owner = owner
        return drafting

    def give_back(self, drafting: Drafting) -> None:
        """The reply is over: another may have the set."""
        self._free.append(drafting)

    def busy(self) -> Busy | None:
        """The predictor that is at work now, None while none is; from any thread."""
        found = (drafting.registry.busy() for drafting in tuple(self._all))
        return next((busy for busy in found if busy is not None), None)

    def close(self) -> None:
        """Let go what plugins hold.

        Raises:
            PredictorError: a plugin raised; all others were closed.
        """
        faults = []
        for drafting in self._all:
            try:
                drafting.registry.close()
            except PredictorError as error:
                faults.append(error)
        if faults:
            raise faults[0]

    def _made(self) -> Drafting:
        registry = Registry(self._backend, None, self._disabled_predictor, taken=self._of_first)
        made = Drafting(registry, AutoController(self._costs))
        self._all.append(made)
        return made
