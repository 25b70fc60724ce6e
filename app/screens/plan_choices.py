"""What the planner lets choose from a list: models, files, cards, and the goal of a search."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from textual import work
from textual.screen import Screen

from app import paths
from app.planning import user_planner
from app.screens.hand_back import hand_back
from engine.configuration import Configuration
from engine.errors import EngineError, PresetError
from engine.events import BufferSize
from engine.model.identity import ModelKind
from engine.model.library import ModelEntry, scan
from engine.planning.fit import FoundSetup, search_setup
from engine.planning.goals import Goal
from engine.planning.knob import Chooser
from engine.planning.knobs import with_adapter, with_draft, with_machine, with_projector
from engine.planning.machine import PlannedMachine, with_gpus
from engine.planning.models import fit_context
from engine.planning.planner import Plan, Planner, Setup
from engine.planning.request import PLACED, PlanRequest, setup_of, suited
from engine.planning.resolve import AUTO_N_CTX

NO_MODEL = "No model is planned yet: m chooses one."
CONTEXT = "n_ctx"
MAX_PAST = 200
"""Changes that can be taken back."""


@dataclass(frozen=True, slots=True)
class LeftPlan:
    """The planner as it was left, for coming back to it."""

    loaded: Configuration | None
    """What was loaded then; with another model the planner begins anew."""
    setup: Setup
    kept: frozenset[str]
    knob: int
    searched: FoundSetup | None
    pinned: Plan | None
    planner: Planner


class PlanChoices(Screen[Configuration | None]):
    """Opens the lists and plans what was chosen."""

    def __init__(
        self,
        *,
        measured: tuple[BufferSize, ...],
        scan: Callable[[], Sequence[ModelEntry]] | None,
        presets_dir: Path | None,
    ) -> None:
        super().__init__()
        self.measured = measured
        self.planner = user_planner(loaded=measured, remembers=True)
        self.setup: Setup | None = None
        self.plan: Plan | None = None
        """What is shown; None where llama.cpp refuses the setup."""
        self.last_plan: Plan | None = None
        self.searched: FoundSetup | None = None
        """What was found last, shown while the knobs stay."""
        self.kept: frozenset[str] = frozenset()
        """Which of context and layers the user has set: the others follow the machine."""
        self.past: deque[Setup] = deque(maxlen=MAX_PAST)
        """Setups before the one of now."""
        self._scan = scan or _scan
        self._presets_dir = presets_dir or paths.presets_dir()

    def change(self, setup: Setup) -> None:
        """Plan another setup."""
        raise NotImplementedError

    def turn(self, setup: Setup) -> None:
        """Plan what the user made of the setup; what follows the machine goes along with it."""
        now = self.setup
        if now is None:
            return
        old, new = _values(now), _values(setup)
        self.kept |= {name for name in old if old[name] != new[name]}
        if setup.machine != now.machine:
            setup = self._moved(setup)
        if files_of(setup) == files_of(now):
            self.change(setup)
        else:
            self.open_setup(setup)

    def _moved(self, setup: Setup) -> Setup:
        try:
            return suited(setup, self.planner, kept=self.kept)
        except PresetError:
            return setup  # llama.cpp refuses its other knobs, which the plan will say

    # --- models and files ---

    def action_choose_model(self) -> None:
        """List the models of this machine and of the catalogue."""
        from app.screens.plan_models import PlanModelsScreen

        setup, folders = self.setup, paths.model_folders()
        now = None if setup is None else setup.configuration.model_path
        bench = partial(fit_context, setup, self.planner)
        self.app.push_screen(PlanModelsScreen(self._scan, folders, bench, now), self.open_model)

    def choose_file(self, chooser: Chooser) -> None:
        """List the files, one of which is to be drafted with, projected by, or added."""
        from app.screens.plan_files import FilesScreen

        if self.setup is None or chooser == "device":
            return
        kind, now = chooser, self.setup.configuration
        beside = now.model_path.absolute().parent
        folders = tuple(dict.fromkeys((*paths.model_folders(), beside)))

        def look() -> Sequence[ModelEntry]:
            return self._scan() if kind == "draft" else _scan(folders, (_KINDS[kind],))

        def take(path: Path | None) -> None:
            if path is not None and self.setup is not None:
                self.turn(_WITH_FILE[kind](self.setup, path))

        chosen = {
            "draft": () if now.draft is None else (now.draft.model_path,),
            "projector": () if now.mmproj_path is None else (now.mmproj_path,),
            "adapter": now.lora_paths,
        }
        screen = FilesScreen(_NAMES[kind], look, folders, chosen[kind])
        self.app.push_screen(screen, take)

    def open_model(self, name: str | Path | None) -> None:
        """Plan a model as it suits the machine; None keeps the one that is there.

        Args:
            name: A path, or a name of the library, of the catalogue or of a remote file.
        """
        if name is not None:
            now = self.setup
            self._read(lambda: _first_setup(str(name), now, self.planner), frozenset())

    def open_setup(self, setup: Setup, kept: frozenset[str] | None = None) -> None:
        """Plan a setup whose models may not have been read yet; with None, what is kept stays."""
        self._read(lambda: setup, kept)

    def open_loaded(self, configuration: Configuration) -> None:
        """Plan what is loaded; a context that nobody chose follows the machine."""
        is_usual = configuration.n_ctx == AUTO_N_CTX
        self.open_setup(Setup(configuration), frozenset(() if is_usual else (CONTEXT,)))

    @work(thread=True, exclusive=True, group="read")
    def _read(self, make: Callable[[], Setup], kept: frozenset[str] | None) -> None:
        """Read headers and ask for devices away from the screen."""
        try:
            setup = make()
            self.planner.estimator(setup)
        except EngineError as error:
            hand_back(self, self.report, error)
            return
        hand_back(self, self._take_read, setup, kept)

    def _take_read(self, setup: Setup, kept: frozenset[str] | None) -> None:
        self.kept = self.kept if kept is None else kept
        self.change(setup)

    # --- machine and goal ---

    def action_choose_card(self) -> None:
        """List cards to plan for."""
        from app.screens.plan_cards import CardsScreen

        setup = self.setup
        if setup is None:
            self.notify(NO_MODEL)
            return

        def take(cards: tuple[str, ...] | None) -> None:
            if cards is None:
                return
            try:
                self.turn(with_machine(setup, with_gpus(setup.machine, (), cards)))
            except EngineError as error:
                self.report(error)

        found = [
            device.name for device in self.planner.devices(PlannedMachine()) if device.kind == "gpu"
        ]
        self.app.push_screen(CardsScreen(", ".join(found) or "no GPU: main memory alone"), take)

    def action_search(self) -> None:
        """Ask for a goal and search for it."""
        from app.screens.plan_goal import GoalScreen

        if self.last_plan is None:
            self.notify(NO_MODEL)
            return

        def take(goal: Goal | None) -> None:
            if goal is not None and self.setup is not None:
                self._search(self.setup, goal)

        self.app.push_screen(GoalScreen(), take)

    @work(thread=True, exclusive=True, group="search")
    def _search(self, setup: Setup, goal: Goal) -> None:
        """Search away from the screen."""
        try:
            searched = search_setup(setup, goal, self.planner)
        except EngineError as error:
            hand_back(self, self.report, error)
            return
        hand_back(self, self._take_found, setup, searched)

    def _take_found(self, asked: Setup, searched: FoundSetup) -> None:
        # The knobs may have been turned while it searched.
        if self.setup is asked:
            self.searched = searched
            self.change(searched.setup)

    def report(self, error: EngineError) -> None:
        """Show an error as a notice."""
        self.notify(str(error), title=error.title, severity="error", markup=False)


def _first_setup(name: str, now: Setup | None, planner: Planner) -> Setup:
    """Give a model with the defaults of the machine that is planned for.

    Raises:
        ModelFileError: nothing has that name, or its header cannot be read.
        HardwareError: the parts make no machine.
    """
    asked = PlanRequest(model=name)
    if now is not None:
        asked = PlanRequest(
            model=name,
            target=now.target,
            machine=now.machine,
            margin_bytes=now.margin_bytes,
        )
    return setup_of(asked, planner)


def _values(setup: Setup) -> dict[str, int]:
    """Give what follows the machine until the user says otherwise."""
    now = setup.configuration
    return {name: getattr(now, name) for name in (CONTEXT, *PLACED)}


def files_of(setup: Setup) -> tuple[Path | None, ...]:
    """Give the files whose headers a plan needs."""
    now = setup.configuration
    draft = None if now.draft is None else now.draft.model_path
    return (now.model_path, draft, now.mmproj_path, *now.lora_paths)


_NAMES = {"draft": "draft model", "projector": "projector", "adapter": "LoRA adapter"}
_KINDS = {"projector": ModelKind.PROJECTOR, "adapter": ModelKind.ADAPTER}
_WITH_FILE: dict[str, Callable[[Setup, Path], Setup]] = {
    "draft": with_draft,
    "projector": with_projector,
    "adapter": with_adapter,
}


def _scan(
    folders: Sequence[Path] | None = None, kinds: Sequence[ModelKind] = (ModelKind.MODEL,)
) -> Sequence[ModelEntry]:
    cache_path = paths.header_cache_path()
    return scan(folders or paths.model_folders(), cache_path=cache_path, kinds=kinds)
