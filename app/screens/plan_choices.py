"""What the planner lets choose from a list: models, files, cards, and the goal of a search."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from textual import work
from textual.screen import Screen

from app import locations
from app.planning.asked import Asked, setup_of_preset
from app.planning.companion_files import find_companions
from app.planning.devices import with_gpus
from app.planning.goals import Searched, search_setup
from app.planning.knob import Chooser
from app.planning.knobs_files import with_adapter, with_draft, with_projector
from app.planning.memo import RememberingPlanner
from app.planning.offers import bench_of
from app.planning.plan import Plan, Setup
from app.screens.hand_back import hand_back
from engine.configuration import Configuration
from engine.errors import EngineError
from engine.events import BufferSize
from engine.memory.search import Goal
from engine.model.library import ModelEntry, scan
from engine.presets.preset import Preset

NO_MODEL = "No model is planned yet: m chooses one."


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
        self.planner = RememberingPlanner(loaded=measured)
        self.setup: Setup | None = None
        self.plan: Plan | None = None
        """What is shown; None where llama.cpp refuses the setup."""
        self.last_plan: Plan | None = None
        self.searched: Searched | None = None
        """What was found last, shown while the knobs stay."""
        self._scan = scan or _scan
        self._presets_dir = presets_dir or locations.presets_dir()

    def change(self, setup: Setup) -> None:
        """Plan another setup."""
        raise NotImplementedError

    # --- models and files ---

    def action_choose_model(self) -> None:
        """List the models of this machine and of the catalogue."""
        from app.screens.plan_models import PlanModelsScreen

        bench = None if self.setup is None else bench_of(self.setup, self.planner)
        now = None if self.setup is None else self.setup.configuration.model_path
        folders = locations.model_folders()
        self.app.push_screen(PlanModelsScreen(self._scan, folders, bench, now), self.open_model)

    def choose_file(self, chooser: Chooser) -> None:
        """List the files, one of which is to be drafted with, projected by, or added."""
        from app.screens.models import ModelsScreen

        if self.setup is None or chooser == "device":
            return
        draft = self.setup.configuration.draft
        now = None if draft is None or chooser != "draft" else draft.model_path
        folders = [*locations.model_folders(), self.setup.configuration.model_path.parent]
        kind = chooser

        def look() -> Sequence[ModelEntry]:
            return self._scan() if kind == "draft" else find_companions(kind, folders)

        def take(path: Path | None) -> None:
            if path is not None and self.setup is not None:
                self.open_setup(_WITH_FILE[kind](self.setup, path))

        self.app.push_screen(ModelsScreen(look, folders, now), take)

    def change_files(self, setup: Setup) -> None:
        """Plan another setup, some of whose files may not have been read yet."""
        if self.setup is not None and files_of(setup) == files_of(self.setup):
            self.change(setup)
        else:
            self.open_setup(setup)

    def open_model(self, name: str | Path | None) -> None:
        """Plan a model as it suits the machine; None keeps the one that is there.

        Args:
            name: A path, or a name of the library, of the catalogue or of a remote file.
        """
        if name is not None:
            now = self.setup
            self._read(lambda: suited(str(name), now, self.planner))

    def open_setup(self, setup: Setup) -> None:
        """Plan a setup whose models may not have been read yet."""
        self._read(lambda: setup)

    @work(thread=True, exclusive=True, group="read")
    def _read(self, make: Callable[[], Setup]) -> None:
        """Read headers and ask for devices away from the screen."""
        try:
            setup = make()
            self.planner.estimator(setup)
        except EngineError as error:
            hand_back(self, self.report, error)
            return
        hand_back(self, self.change, setup)

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
                self.change(with_gpus(setup, (), cards))
            except EngineError as error:
                self.report(error)

        found = [device.name for device in self.planner.devices(()) if device.kind == "gpu"]
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

    def _take_found(self, asked: Setup, searched: Searched) -> None:
        # The knobs may have been turned while it searched.
        if self.setup is asked:
            self.searched = searched
            self.change(searched.setup)

    def report(self, error: EngineError) -> None:
        """Show an error as a notice."""
        self.notify(str(error), title=error.title, severity="error", markup=False)


def suited(name: str, now: Setup | None, planner: RememberingPlanner) -> Setup:
    """Give a model as it suits the machine that is planned for.

    Raises:
        ModelFileError: nothing has that name, or its header cannot be read.
        HardwareError: the parts make no machine.
    """
    if now is None:
        return setup_of_preset(Preset(name="default"), Asked(model=name), planner)
    vram: tuple[int, ...] = ()
    if now.vram_bytes or now.cards:
        gpus = (device for device in planner.devices_of(now) if device.kind == "gpu")
        vram = tuple(gpu.total_bytes for gpu in gpus)
    asked = Asked(model=name, target=now.target, vram_bytes=vram, margin_bytes=now.margin_bytes)
    setup = setup_of_preset(Preset(name="default"), asked, planner)
    return replace(
        setup,
        vram_bytes=now.vram_bytes,
        cards=now.cards,
        ram_bytes=now.ram_bytes,
        margin_bytes=now.margin_bytes,
    )


def files_of(setup: Setup) -> tuple[Path | None, ...]:
    """Give the files whose headers a plan needs."""
    now = setup.configuration
    draft = None if now.draft is None else now.draft.model_path
    return (now.model_path, draft, now.mmproj_path, *now.lora_paths)


_WITH_FILE: dict[str, Callable[[Setup, Path], Setup]] = {
    "draft": with_draft,
    "projector": with_projector,
    "adapter": with_adapter,
}


def _scan() -> Sequence[ModelEntry]:
    return scan(locations.model_folders(), cache_path=locations.header_cache_path())
