"""What the planner's screen plans, what it planned before, and its lines; no Textual here."""

from collections import deque
from collections.abc import Iterator
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
MAX_PAST = 200
"""Changes that can be taken back."""


@dataclass(slots=True)
class PlanSession:
    """A setup with its plan, the setups before it, and what the user has set in it."""

    loaded: Configuration | None
    """What is loaded, where the options start."""
    measured: tuple[BufferSize, ...]
    """What llama.cpp has allocated for it."""
    planner: Planner = field(init=False)
    setup: Setup | None = None
    plan: Plan | None = None
    """What is shown; None where llama.cpp refuses the setup."""
    last_plan: Plan | None = None
    """The last one that llama.cpp did not refuse."""
    searched: tuple[Setup, SearchResult] | None = None
    """What was found last, shown while the options stay."""
    left_setup: Setup | None = None
    """What was planned when the planner was left before."""
    kept: frozenset[str] = frozenset()
    """Which of context and layers the user has set: the others follow the machine."""
    changes: tuple[Change, ...] = ()
    """The changes worth a thought, the best first; none until they were worked out."""
    has_changes: bool = False
    """Whether those are known for the plan that is shown."""
    option: int = 0
    """The chosen option, kept when the planner is left."""
    note: str = ""
    """Why the dry run gave no numbers."""
    past: deque[Setup] = field(default_factory=lambda: deque(maxlen=MAX_PAST))
    """Setups before the one of now."""

    def __post_init__(self) -> None:
        self.planner = user_planner(loaded=self.measured, remembers=True)

    # --- where it starts ---

    def start_of_loaded(self, configuration: Configuration) -> tuple[Setup, frozenset[str]]:
        """The setup of what is loaded, and what is kept of it: a context that was chosen."""
        is_usual = configuration.n_ctx == AUTO_N_CTX
        return Setup(configuration), frozenset(() if is_usual else (CONTEXT,))

    def start_of_model(self, name: str) -> Setup:
        """A model with the defaults of the machine that is planned for.

        Raises:
            ModelFileError: nothing has that name, or its header cannot be read.
            HardwareError: the parts make no machine.
        """
        now, asked = self.setup, PlanRequest(model=name)
        if now is not None:
            asked = PlanRequest(
                model=name,
                target=now.target,
                machine=now.machine,
                margin_bytes=now.margin_bytes,
            )
        return setup_of(asked, self.planner, with_settings(None, load_settings().settings))

    def resume(self, left: "PlanSession") -> None:
        """Take over what was searched and read when the planner was left."""
        self.planner.take_headers(left.planner)
        self.option, self.searched = left.option, left.searched
        self.left_setup = left.setup

    def restart(self) -> None:
        """Forget what was searched."""
        self.searched = None

    # --- changes ---

    def turned(self, setup: Setup) -> Setup:
        """A setup that the user made of the one of now; what follows the machine goes along."""
        now = self.setup
        if now is None:
            return setup
        old, new = _values(now), _values(setup)
        self.kept |= {name for name in old if old[name] != new[name]}
        if setup.machine == now.machine:
            return setup
        try:
            return suit_to_machine(setup, self.planner, fixed=self.kept)
        except PresetError:
            return setup  # llama.cpp refuses its other options, which the plan will say

    def has_headers_of(self, setup: Setup) -> bool:
        """Whether a setup is of the files of the one of now, whose headers were read."""
        return self.setup is not None and _files_of(setup) == _files_of(self.setup)

    def enter(self, setup: Setup) -> Facts:
        """Make a setup the one of now, and the one of now the last before it.

        Returns:
            What the options need to know of it.
        """
        facts = self.planner.facts_of(setup)
        setup = with_matched_types(setup, facts)
        if self.setup is not None and self.setup != setup:
            self.past.append(self.setup)
        self.setup, self.note = setup, ""
        return facts

    def make_plan(self) -> Plan | None:
        """The plan of the setup of now.

        Raises:
            EngineError: llama.cpp refuses the setup.
        """
        self.plan = None
        if self.setup is not None:
            plan = self.planner.plan(self.setup)
            self.changes, self.has_changes = (), False
            self.plan = self.last_plan = plan
        return self.plan

    def find_changes(self) -> Iterator[None]:
        """Compute the useful changes, one with each step."""
        if self.setup is None:
            return
        plan = self.planner.plan(self.setup)
        found = []
        for each in changes(plan, self.planner, self.planner.facts_of(plan.setup)):
            found.append(each)
            yield
        self.changes, self.has_changes = best_changes(found), True

    # --- what is shown ---

    def heading(self, plan: Plan, width: int) -> Line:
        """The model, the machine and the verdict, in one line."""
        return (Run(" "), *heading_line(plan, width - 2, self._origin(plan.setup)))

    def memory_lines(self, plan: Plan, width: int, symbols: GraphSymbols) -> list[Line]:
        """What the plan costs."""
        advice = advice_line(self.changes, plan.verdict)
        lines = plan_lines(plan, width, symbols, loaded=self._loaded(plan), advice=advice)
        setup, found = self.searched or (None, None)
        if found is None or setup != plan.setup:
            return lines
        return [*goal_lines(found, width), EMPTY, *lines]

    def side_lines(self, plan: Plan, width: int) -> list[Line]:
        """The changes worth a thought, the warnings, and the arguments."""
        note = (f"the dry run failed: {self.note}",) if self.note else ()
        parts = [
            change_lines(self.changes, width, " · press a to apply one"),
            warning_section(plan, width, extra=note),
            command_lines(plan, width),
        ]
        lines: list[Line] = []
        for part in filter(None, parts):
            lines += [*([EMPTY] if lines else []), *part]
        return lines

    def _origin(self, setup: Setup) -> str:
        """Where a setup comes from, while nobody has changed it."""
        if setup.configuration == self.loaded and setup.machine.is_here:
            return "as loaded"
        return "last plan" if setup == self.left_setup else ""

    def _loaded(self, plan: Plan) -> dict[str, dict[TermKind, int]] | None:
        is_loaded = file_of(self.loaded) == plan.setup.configuration.model_path
        if not plan.setup.machine.is_here or not is_loaded:
            return None
        return loaded_bytes(self.measured, plan.estimate.devices) if self.measured else None


def file_of(configuration: Configuration | None) -> Path | None:
    """The model of a configuration."""
    return None if configuration is None else configuration.model_path


def preset_of_setup(setup: Setup, name: str) -> Preset:
    """A preset of a setup, the size of the one GPU that was chosen included.

    Raises:
        PresetError: the name is impossible.
    """
    changed: dict[str, float] = {"margin_gib": setup.margin_bytes / GIB}
    machine = setup.machine
    sizes = (*machine.vram_bytes, *(find_card(name).memory_bytes for name in machine.cards))
    if len(sizes) == 1:
        changed["vram_gib"] = sizes[0] / GIB
    return preset_of(setup.configuration, name).model_copy(update=changed)


def _values(setup: Setup) -> dict[str, int]:
    """What follows the machine until the user sets it."""
    now = setup.configuration
    return {name: getattr(now, name) for name in (CONTEXT, *PLACED)}


def _files_of(setup: Setup) -> tuple[Path | None, ...]:
    """The files whose headers a plan needs."""
    now = setup.configuration
    draft = None if now.draft is None else now.draft.model_path
    return (now.model_path, draft, now.mmproj_path, *now.lora_paths)
