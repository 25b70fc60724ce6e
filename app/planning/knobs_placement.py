"""Knobs that say what lies on which device."""

from dataclasses import replace

from app.planning.knob import Facts, Knob, choice, with_configuration
from app.planning.plan import Setup
from app.planning.values import parse_count, parse_layers, parse_shares
from engine.configuration import Configuration, SplitMode

SPLIT_MODES: tuple[SplitMode, ...] = ("layer", "none")
SHARE_STEP = 5
"""Percent that a turn moves from one GPU to the others."""


def no_gpu(setup: Setup, facts: Facts) -> str:
    """Say that there is no GPU to put anything on."""
    del setup
    return "" if facts.gpus else "there is no GPU: everything lies in main memory"


def _nothing_on_gpu(setup: Setup, facts: Facts) -> str:
    if setup.configuration.n_gpu_layers == 0 and facts.gpus:
        return "no layer is on a GPU"
    return no_gpu(setup, facts)


def _no_experts(setup: Setup, facts: Facts) -> str:
    if not facts.model.architecture.is_moe:
        return "this model has no experts"
    return _nothing_on_gpu(setup, facts)


def _one_gpu(setup: Setup, facts: Facts) -> str:
    if len(facts.gpus) == 1:
        return "there is one GPU only"
    return _nothing_on_gpu(setup, facts)


def _not_alone(setup: Setup, facts: Facts) -> str:
    if setup.configuration.split_mode != "none" and len(facts.gpus) > 1:
        return "split layer uses every GPU"
    return _one_gpu(setup, facts)


def _not_split(setup: Setup, facts: Facts) -> str:
    if setup.configuration.split_mode == "none" and len(facts.gpus) > 1:
        return "split none uses one GPU"
    return _one_gpu(setup, facts)


def _changed(setup: Setup, **values: object) -> Setup:
    now: Configuration = replace(setup.configuration, **values)  # type: ignore[arg-type]  # by name
    return with_configuration(setup, now)


def _turn_layers(setup: Setup, facts: Facts, step: int) -> Setup:
    n_all = facts.model.architecture.n_layers + 1
    now = setup.configuration.n_gpu_layers
    n_layers = (n_all if now < 0 else min(now, n_all)) + step
    return _changed(setup, n_gpu_layers=-1 if n_layers >= n_all else max(n_layers, 0))


def _turn_experts(setup: Setup, facts: Facts, step: int) -> Setup:
    n_all = facts.model.architecture.n_layers
    now = setup.configuration.n_cpu_moe
    n_layers = (n_all if now < 0 else min(now, n_all)) + step
    return _changed(setup, n_cpu_moe=-1 if n_layers >= n_all else max(n_layers, 0))


def _all_or(number: int) -> str:
    return "all" if number < 0 else str(number)


def _shown_experts(setup: Setup) -> str:
    number = setup.configuration.n_cpu_moe
    return "none" if number == 0 else _all_or(number)


def _read_experts(setup: Setup, text: str) -> Setup:
    number = 0 if text.strip().lower() == "none" else parse_layers(text)
    return _changed(setup, n_cpu_moe=number)


def _turn_main(setup: Setup, facts: Facts, step: int) -> Setup:
    last = max(len(facts.gpus) - 1, 0)
    return _changed(setup, main_gpu=min(max(setup.configuration.main_gpu + step, 0), last))


def _percents(setup: Setup, facts: Facts) -> list[int]:
    """Give the share of each GPU in percent; without a split, that of its free memory."""
    shares: list[float] = list(setup.configuration.tensor_split)
    if len(shares) != len(facts.gpus):
        shares = [float(gpu.free_bytes) for gpu in facts.gpus]
    total = sum(shares) or 1.0
    return [round(100 * share / total) for share in shares]


def _turn_split(setup: Setup, facts: Facts, step: int) -> Setup:
    """Move a share between the first GPU and the others."""
    first, *others = _percents(setup, facts) or [100]
    now = SHARE_STEP * round(first / SHARE_STEP)
    wanted = min(max(now + SHARE_STEP * step, SHARE_STEP), 100 - SHARE_STEP)
    if not others or wanted == now:
        return setup
    rest = sum(others) or 1
    shares = [round((100 - wanted) * share / rest) for share in others]
    shares[-1] += 100 - wanted - sum(shares)
    return _changed(setup, tensor_split=(float(wanted), *map(float, shares)))


def _shown_split(setup: Setup) -> str:
    return ":".join(f"{share:g}" for share in setup.configuration.tensor_split) or "auto"


PLACEMENT_KNOBS: tuple[Knob, ...] = (
    Knob(
        "n_gpu_layers", "GPU layers", "Layers on the GPU, the output counting as one, or all.",
        lambda setup: _all_or(setup.configuration.n_gpu_layers), _turn_layers,
        lambda setup, text: _changed(setup, n_gpu_layers=parse_layers(text)),
        no_gpu,
    ),
    choice(
        "offload_kqv", "KV cache on", "Where the cache of the layers on the GPU lies.",
        ("GPU", "CPU"),
        lambda setup: "GPU" if setup.configuration.offload_kqv else "CPU",
        lambda setup, value: _changed(setup, offload_kqv=value == "GPU"),
        idle=_nothing_on_gpu,
    ),
    Knob(
        "n_cpu_moe", "CPU experts",
        "First layers whose experts stay in main memory: a number, none or all.",
        _shown_experts, _turn_experts, _read_experts, _no_experts,
    ),
    choice(
        "split_mode", "split", "Whether the GPUs share the layers, or one takes them all.",
        SPLIT_MODES,
        lambda setup: setup.configuration.split_mode,
        lambda setup, value: _changed(setup, split_mode=value),
        idle=_one_gpu,
    ),
    Knob(
        "tensor_split", "GPU shares", "Share of each GPU in the layers. Type 3:1 or auto.",
        _shown_split, _turn_split,
        lambda setup, text: _changed(setup, tensor_split=parse_shares(text)),
        _not_split,
    ),
    Knob(
        "main_gpu", "main GPU", "The GPU that takes everything.",
        lambda setup: str(setup.configuration.main_gpu), _turn_main,
        lambda setup, text: _changed(setup, main_gpu=parse_count(text, low=0, high=15)),
        _not_alone,
    ),
)  # fmt: skip
