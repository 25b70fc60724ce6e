"""Presets that name a goal: what they leave open, a search settles."""

from dataclasses import replace

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.fit import DoesNotFitError, estimator, with_n_ctx
from engine.memory.hardware import Device
from engine.memory.search import Found, Goal, Limits, Offload, search
from engine.memory.terms import Target
from engine.memory.units import GIB
from engine.model.architecture import Model
from engine.presets.preset import Preset
from engine.presets.quicker_attention import with_quicker_attention

LEAST_N_CTX = 512
"""Least context of a slot where the usual one does not fit."""


def settled_by_goal(
    rules: Preset,
    start: Configuration,
    model: Model,
    devices: tuple[Device, ...],
    target: Target,
    draft: Model | None,
) -> Configuration:
    """Give the best configuration for a preset's goal, with what the preset fixes left as it is.

    A fixed context is taken as it is, also where it does not fit.

    Raises:
        PresetError: the preset also fixes layers; `DoesNotFitError` where nothing fits.
    """
    _check(rules)
    of_machine = _devices(rules, devices)
    goal = Goal(rules.goal or Goal.BALANCED)

    def found(least: int | None) -> Found:
        return search(
            model,
            of_machine,
            goal,
            target=target,
            margin_bytes=round(rules.margin_gib * GIB),
            draft=draft,
            base=start,
            limits=_limits(rules, least, has_draft=draft is not None),
        )

    try:
        chosen = found(None).configuration
    except DoesNotFitError:
        if isinstance(rules.n_ctx, int):
            return with_n_ctx(start, rules.n_ctx)
        chosen = found(LEAST_N_CTX).configuration
    chosen = replace(chosen, n_gpu_layers=0) if rules.n_gpu_layers == 0 else chosen
    if goal is not Goal.SPEED:
        return chosen
    cost = estimator(model, of_machine, target=target, draft=draft)
    return with_quicker_attention(chosen, model, of_machine, cost, round(rules.margin_gib * GIB))


def _check(rules: Preset) -> None:
    fixed = [
        name
        for name, is_fixed in (
            ("n_gpu_layers", isinstance(rules.n_gpu_layers, int) and rules.n_gpu_layers > 0),
            ("n_cpu_moe", rules.n_cpu_moe != 0),
        )
        if is_fixed
    ]
    if fixed:
        raise PresetError(
            f"the goal {rules.goal} chooses where the layers lie: leave out {' and '.join(fixed)}, "
            "or the goal"
        )


def _devices(rules: Preset, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Give the devices that the rules leave: no GPU for no layers, and the memory they name."""
    used = [d for d in devices if d.kind == "cpu" or rules.n_gpu_layers != 0]
    if rules.ram_gib is None:
        return tuple(used)
    nbytes = round(rules.ram_gib * GIB)
    ram = Device("CPU", "cpu", nbytes, nbytes)
    return tuple(ram if device.kind == "cpu" else device for device in used)


def _limits(rules: Preset, least: int | None, *, has_draft: bool) -> Limits:
    said = rules.model_fields_set
    most = None
    if isinstance(rules.n_ctx, int):
        least = most = -(-rules.n_ctx // rules.n_slots)
    return Limits(
        min_n_ctx=least,
        max_n_ctx=most,
        pairs=((rules.type_k, rules.type_v),) if said & {"type_k", "type_v"} else None,
        offload=Offload.NONE if rules.n_gpu_layers == "all" else Offload.PARTIAL,
        draft="always" if has_draft else "auto",
        can_shrink_batches="n_ubatch" not in said,
    )
