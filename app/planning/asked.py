"""From what a user asked for to a setup: preset, model, options and machine joined.

The commands, the presets and the planner all start from here, so that one question has one answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app import paths
from app.planning.model_source import Progress, take_model
from app.planning.plan import Planner, Setup
from engine.configuration import Configuration, PredictorName
from engine.errors import PresetError
from engine.memory.fit import with_n_ctx
from engine.memory.processor import Instructions
from engine.memory.terms import Target
from engine.memory.units import GIB
from engine.model.architecture import Model
from engine.presets.library import find_preset, preset_of
from engine.presets.preset import Preset
from engine.presets.resolve import LEAST_N_CTX, DoesNotFitError, Machine, resolve

PLACED = frozenset(("n_gpu_layers", "n_cpu_moe"))
"""Fields of a configuration that say where the layers lie."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line or the presets screen names; what it leaves out, the preset says."""

    model: str | None = None
    preset: str | None = None
    target: Target = "kvchat"
    draft: str | None = None
    vram_bytes: tuple[int, ...] = ()
    cards: tuple[str, ...] = ()
    ram_bytes: int | None = None
    cpu: Instructions | None = None
    margin_bytes: int | None = None
    rules: Mapping[str, object] = field(default_factory=dict)
    """Values that stand over those of the preset, by the preset's own keys."""


def setup_of(asked: Asked, planner: Planner, *, progress: Progress | None = None) -> Setup:
    """Give the setup that was asked for; where nothing fits, with a small context.

    Args:
        asked: What to set up.
        planner: Reads the models, and then knows them.
        progress: Told how much of the header of a remote model has come.

    Raises:
        PresetError: the preset is not there or not valid, or no model is named.
        ModelFileError: a model is not there or cannot be read.
    """
    preset = find_preset(asked.preset, paths.presets_dir()) if asked.preset else None
    return setup_of_preset(preset or Preset(name="default"), asked, planner, progress=progress)


def setup_of_preset(
    preset: Preset, asked: Asked, planner: Planner, *, progress: Progress | None = None
) -> Setup:
    """Give the setup of a preset that was read already; raises as `setup_of` does."""
    rules = _with_rules(preset, asked)
    model_path = take_model(_model_name(rules, asked), planner, progress)
    draft_name = asked.draft or (rules.draft.model if rules.draft else None)
    draft_path = None if draft_name is None else take_model(draft_name, planner, progress)
    margin = asked.margin_bytes
    if margin is not None:
        rules = rules.model_copy(update={"margin_gib": margin / GIB})
    vram = asked.vram_bytes or (() if asked.cards else _vram(rules))
    machine = Machine(planner.devices(vram, asked.cards, asked.ram_bytes, asked.cpu), asked.target)
    draft = None if draft_path is None else planner.model(draft_path)
    configuration = _resolved(rules, planner.model(model_path), machine, draft)
    margin_bytes = round(rules.margin_gib * GIB)
    return Setup(
        configuration, asked.target, vram, margin_bytes, asked.cards, asked.ram_bytes, asked.cpu
    )


def _resolved(rules: Preset, model: Model, machine: Machine, draft: Model | None) -> Configuration:
    """Resolve rules; where nothing fits, with a small context."""
    try:
        return resolve(rules, model, machine, draft=draft)
    except DoesNotFitError:
        least = rules.model_copy(update={"n_ctx": LEAST_N_CTX})
        return resolve(least, model, machine, draft=draft)


def suited(setup: Setup, planner: Planner, *, kept: frozenset[str] = frozenset()) -> Setup:
    """Give a setup with the context and the layers that suit its machine beside its other knobs.

    They are those of `kvchat plan` with the same options.

    Args:
        setup: Whose machine counts.
        planner: Knows its models.
        kept: What stays as it is, of `n_ctx`, `n_gpu_layers` and `n_cpu_moe`.

    Raises:
        PresetError: llama.cpp refuses the other knobs.
    """
    now = setup.configuration
    rules = preset_of(now, "default").model_copy(
        update={
            "n_ctx": now.n_ctx if "n_ctx" in kept else "auto",
            "n_gpu_layers": "auto",
            "n_cpu_moe": 0,
            "margin_gib": setup.margin_bytes / GIB,
        }
    )
    machine = Machine(planner.devices_of(setup), setup.target)
    draft = None if now.draft is None else planner.model(now.draft.model_path)
    found = _resolved(rules, planner.model(now.model_path), machine, draft)
    if not kept & PLACED:
        now = replace(now, n_gpu_layers=found.n_gpu_layers, n_cpu_moe=found.n_cpu_moe)
    return replace(setup, configuration=with_n_ctx(now, found.n_ctx))


def _model_name(rules: Preset, asked: Asked) -> str:
    name = asked.model or rules.model
    if name is None:
        raise PresetError(
            f"the preset {rules.name!r} names no model: say which one, a path or a name from "
            "`kvchat models`"
        )
    return name


def _vram(rules: Preset) -> tuple[int, ...]:
    return () if rules.vram_gib is None else (round(rules.vram_gib * GIB),)


def _with_rules(preset: Preset, asked: Asked) -> Preset:
    """Put what was asked over a preset.

    A batch that was asked for takes the micro batch along, and a draft model is there to draft.
    """
    changed = dict(asked.rules)
    n_batch = changed.get("n_batch")
    if isinstance(n_batch, int) and "n_ubatch" not in changed:
        changed["n_ubatch"] = min(preset.n_ubatch, n_batch)
    if asked.draft is not None:
        speculation = {"predictor": PredictorName.DRAFT}
        changed["speculation"] = preset.speculation.model_copy(update=speculation)
    return preset.model_copy(update=changed)
