"""The plan of the planner screen, its undo and its lines; no Textual here."""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from app.config import load_settings
from app.planning import user_planner, with_settings
from app.render.charts import GraphSymbols
from app.render.lines import EMPTY, Line, Run
from app.render.plan import command_lines, heading_line, plan_lines, warning_section
from app.render.plan_changes import advice_line, change_lines
from app.render.plan_lists import goal_lines
from engine.configuration import Configuration
from engine.errors import PresetError
from engine.events import BufferSize
from engine.memory.cards import find_card
from engine.memory.terms import TermKind
from engine.memory.units import GIB
from engine.planning.changes import Change, best_changes, changes
from engine.planning.fit import SearchResult
from engine.planning.measured import loaded_bytes
from engine.planning.options import with_matched_types
from engine.planning.planner import Facts, Plan, Planner, Setup
from engine.planning.request import PLACED, PlanRequest, setup_of, suit_to_machine
from engine.planning.resolve import AUTO_N_CTX
from engine.presets.library import preset_of
from engine.presets.preset import Preset

CONTEXT = "n_ctx"
MAX_UNDO = 200
"""Changes that can be undone."""


@dataclass(slots=True)
class PlanSession:
    """A setup with its plan, the earlier setups, and the values that the user set."""

    loaded: Configuration | None
    """The loaded configuration."""
    measured: tuple[BufferSize, ...]
    """The buffers that llama.cpp allocated for it."""
    planner: Planner = field(init=False)
    setup: Setup | None = None
    plan: Plan | None = None
    """The plan; None if llama.cpp refuses the setup."""
    searched: tuple[Setup, SearchResult] | None = None
    """The last search, shown while the setup is its result."""
    user_set: frozenset[str] = frozenset()
    """Names of the values that the user set; the others follow the machine."""
    changes: tuple[Change, ...] | None = None
    """The suggested changes, the best first; None until they are computed."""
    option: str = ""
    """Name of the highlighted option, highlighted again when the planner is opened again."""
    note: str = ""
    """Why the dry run failed."""
    past: deque[Setup] = field(default_factory=lambda: deque(maxlen=MAX_UNDO))

    def __post_init__(self) -> None:
        self.planner = user_planner(loaded=self.measured, remembers=True)

    @property
    def facts(self) -> Facts | None:
        """The facts of the setup that its options depend on."""
        return None if self.setup is None else self.planner.facts_of(self.setup)

    # --- the first setup ---

    def start(self, configuration: Configuration) -> Setup:
        """The setup of the loaded configuration; a context other than the default stays."""
        is_default = configuration.n_ctx == AUTO_N_CTX
        self.user_set = frozenset(() if is_default else (CONTEXT,))
        return Setup(configuration)

    def setup_for(self, name: str) -> Setup:
        """The setup of a model on the machine of the current setup.

        Raises:
            ModelFileError: no model has this name, or its header cannot be read.
            HardwareError: the devices cannot be combined.
        """
        now, request = self.setup, PlanRequest(model=name)
        if now is not None:
            request = PlanRequest(
                model=name,
                target=now.target,
                machine=now.machine,
                margin_bytes=now.margin_bytes,
            )
        setup = setup_of(request, self.planner, with_settings(None, load_settings().settings))
        self.user_set = frozenset()
        return setup

    def resume(self, earlier: "PlanSession") -> None:
        """Use headers, search result and choices of a session that was left."""
        self.planner.take_headers(earlier.planner)
        self.option, self.searched = earlier.option, earlier.searched
        self.user_set = earlier.user_set

    # --- changes ---

    def following(self, setup: Setup) -> Setup:
        """A setup that the user changed, with other values adapted to another machine."""
        now = self.setup
        if now is None:
            return setup
        old, new = _placed_values(now), _placed_values(setup)
        self.user_set |= {name for name in old if old[name] != new[name]}
        if setup.machine == now.machine:
            return setup
        try:
            return suit_to_machine(setup, self.planner, fixed=self.user_set)
        except PresetError:
            return setup  # the plan reports what llama.cpp refuses

    def has_headers_of(self, setup: Setup) -> bool:
        """Whether all headers of a setup were read."""
        return self.setup is not None and _files_of(setup) == _files_of(self.setup)

    def change(self, setup: Setup) -> Plan:
        """Plan a setup whose headers were read; the previous setup can be restored.

        Raises:
            EngineError: llama.cpp refuses the setup.
        """
        setup = with_matched_types(setup, self.planner.facts_of(setup))
        if self.setup is not None and self.setup != setup:
            self.past.append(self.setup)
        self.setup, self.note, self.plan, self.changes = setup, "", None, None
        self.plan = self.planner.plan(setup)
        return self.plan

    def find_changes(self, setup: Setup) -> tuple[Change, ...]:
        """Compute the suggested changes of a setup."""
        plan = self.planner.plan(setup)
        return best_changes(changes(plan, self.planner, self.planner.facts_of(setup)))

    # --- lines ---

    def heading(self, plan: Plan, width: int) -> Line:
        """The model, the program and the context in one line."""
        setup = plan.setup
        is_loaded = setup.configuration == self.loaded and setup.machine.is_here
        return (Run(" "), *heading_line(plan, width - 2, "as loaded" if is_loaded else ""))

    def memory_lines(self, plan: Plan, width: int, symbols: GraphSymbols) -> list[Line]:
        """The verdict and the devices, below the result of a search."""
        advice = advice_line(self.changes or (), plan.verdict)
        lines = plan_lines(plan, width, symbols, loaded=self._loaded(plan), advice=advice)
        setup, found = self.searched or (None, None)
        if found is None or setup != plan.setup:
            return lines
        return [*goal_lines(found, width), EMPTY, *lines]

    def side_lines(self, plan: Plan, width: int) -> list[Line]:
        """The suggested changes, the warnings, and the command."""
        note = (f"the dry run failed: {self.note}",) if self.note else ()
        sections = [
            change_lines(self.changes or (), width, " · press a to choose"),
            warning_section(plan, width, extra=note),
            command_lines(plan, width),
        ]
        return [line for section in sections if section for line in (*section, EMPTY)]

    def _loaded(self, plan: Plan) -> dict[str, dict[TermKind, int]] | None:
        is_loaded = file_of(self.loaded) == plan.setup.configuration.model_path
        if not plan.setup.machine.is_here or not is_loaded or not self.measured:
            return None
        return loaded_bytes(self.measured, plan.estimate.devices)


def file_of(configuration: Configuration | None) -> Path | None:
    """The model of a configuration."""
    return None if configuration is None else configuration.model_path


def preset_of_setup(setup: Setup, name: str) -> Preset:
    """A preset of a setup, with the size of its GPU if the user chose a single one.

    Raises:
        PresetError: the name is impossible.
    """
    changed: dict[str, float] = {"margin_gib": setup.margin_bytes / GIB}
    machine = setup.machine
    sizes = (*machine.vram_bytes, *(find_card(name).memory_bytes for name in machine.cards))
    if len(sizes) == 1:
        changed["vram_gib"] = sizes[0] / GIB
    return preset_of(setup.configuration, name).model_copy(update=changed)


def _placed_values(setup: Setup) -> dict[str, int]:
    """The values that follow the machine until the user sets them."""
    return {name: getattr(setup.configuration, name) for name in (CONTEXT, *PLACED)}


def _files_of(setup: Setup) -> tuple[Path | None, ...]:
    now = setup.configuration
    draft = None if now.draft is None else now.draft.model_path
    return (now.model_path, draft, now.mmproj_path, *now.lora_paths)
