"""What is worth trying on a machine: workloads, and settings grouped by what they decide."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

from engine.configuration import MOST_COUNT, Bounds, Configuration
from engine.memory.kv_cache import is_quantized

WorkloadName = Literal["prompt", "near", "deep"]
PositiveCount = Annotated[int, Bounds(ge=1, le=MOST_COUNT)]

EVERYTHING: tuple[WorkloadName, ...] = ("near", "prompt", "deep")
"""The deep one is at an end, so that turning the order reads its chat once for two rounds."""
TURN: Mapping[WorkloadName, float] = {"prompt": 512, "near": 128, "deep": 128}
"""Tokens of the turn that settings are judged by: a message and its sources are read, and a reply
is written that begins in a short chat as often as in a long one."""

NEAR_TOKENS = 64
"""Tokens that are held when a short chat's reply is timed."""
RUN_SHARE = 1 / 720
"""Of the time for everything, what one run takes: 0.25 s of three minutes, so that some 400 fit
beside the loading."""
DEEP_SHARE = 1 / 60
"""Of the time for everything, what an engine may read before replies in a long chat are timed."""
LEAST_RUN_S, MOST_RUN_S = 0.2, 2.0
LEAST_WRITTEN, MOST_WRITTEN = 4, 64
LEAST_READ, MOST_READ = 32, 1024
LEAST_DEEP, MOST_DEEP = 256, 4096
ROUND_TO = 32

MICRO_BATCHES = (64, 128, 256, 512, 1024)
CACHE_TYPES = (("q8_0", "q8_0"), ("q4_0", "q4_0"))


class Variant(NamedTuple):
    """An engine to measure."""

    configuration: Configuration
    replica: int = 0
    """Tells engines of one configuration apart."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is timed: reading a prompt, or writing behind a chat of some length."""

    name: WorkloadName
    n_held: int
    """Tokens that lie in the cache before the clock starts."""
    n_tokens: int
    """Tokens that are read or written while it runs."""

    @property
    def is_read(self) -> bool:
        return self.name == "prompt"

    @property
    def title(self) -> str:
        """In words: `reading 512 tokens`, `writing behind 2,048 tokens`."""
        if self.is_read:
            return f"reading {self.n_tokens:,} tokens"
        return f"writing behind {self.n_held:,} tokens"


@dataclass(frozen=True, slots=True)
class WorkloadSizes:
    """How much each workload holds, so that a run is long enough to time and short enough."""

    n_prompt: PositiveCount
    n_written: PositiveCount
    n_deep: PositiveCount

    def workload(self, name: WorkloadName) -> Workload:
        """A workload by its name."""
        match name:
            case "prompt":
                return Workload(name, 0, self.n_prompt)
            case "near":
                return Workload(name, NEAR_TOKENS, self.n_written)
            case "deep":
                return Workload(name, self.n_deep, self.n_written)

    @property
    def n_ctx(self) -> int:
        """Cells that the largest workload needs, twice what is counted in tokens of its text."""
        return -(-2 * (max(self.n_deep, self.n_prompt) + self.n_written) // 256) * 256


def sizes_for(prompt_tps: float, decode_tps: float, budget_s: float, n_ctx: int) -> WorkloadSizes:
    """Sizes for a machine that reads and writes so many tokens a second.

    Args:
        prompt_tps: Tokens of a prompt that it reads a second.
        decode_tps: Tokens that it writes a second.
        budget_s: Time for everything.
        n_ctx: Context that is tuned for: no chat is longer.
    """
    run_s = min(max(budget_s * RUN_SHARE, LEAST_RUN_S), MOST_RUN_S)
    most = max(n_ctx // 2 - MOST_WRITTEN, LEAST_READ)
    return WorkloadSizes(
        n_prompt=_rounded(prompt_tps * run_s, LEAST_READ, min(MOST_READ, most)),
        n_written=min(max(round(decode_tps * run_s), LEAST_WRITTEN), MOST_WRITTEN),
        n_deep=_rounded(prompt_tps * budget_s * DEEP_SHARE, LEAST_DEEP, min(MOST_DEEP, most)),
    )


def _rounded(n: float, low: int, high: int) -> int:
    return max(min(round(n / ROUND_TO) * ROUND_TO, high), min(low, high))


@dataclass(frozen=True, slots=True)
class Scope:
    """What is known of machine and model before anything is measured."""

    n_cores: int
    """Physical cores, which is as many threads as kvchat takes by itself."""
    n_logical: int
    """Threads that the processor runs at once."""
    n_layers: int
    """Of the model, the output counting as one."""
    has_gpu: bool
    has_flash_attention: bool
    """Whether the model can go either way."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings to try in the place of those of now."""

    label: str
    changes: Mapping[str, object]
    """Fields of `Configuration` with their values."""

    def of(self, configuration: Configuration) -> Configuration:
        """The configuration with these settings."""
        changed: Configuration = replace(configuration, **self.changes)  # type: ignore[arg-type]  # by name
        return changed


@dataclass(frozen=True, slots=True)
class SettingGroup:
    """Candidates that exclude each other, and what they change."""

    name: str
    workloads: tuple[WorkloadName, ...]
    """What its trials can make quicker or slower."""
    trials: tuple[Trial, ...]
    cost: str = ""
    """What taking one costs beside time; empty is nothing."""
    never_taken: str = ""
    """Why a quicker one is told and not taken; empty where it is taken."""


def setting_groups(
    now: Configuration, scope: Scope, sizes: WorkloadSizes
) -> tuple[SettingGroup, ...]:
    """What to try with a configuration, what decides most first; nothing that is as now.

    `now` names its threads.
    """
    every = (
        _gpu_layers(now, scope),
        _threads(now, scope),
        _threads_batch(now, scope),
        _flash_attention(now, scope),
        _repacking(now, scope),
        _micro_batch(now, sizes),
        _mapping(now),
        _cache_types(now),
    )
    return tuple(each for each in every if each.trials)


def thread_counts(scope: Scope) -> tuple[int, ...]:
    """Numbers of threads to try: all of up to four, else shares of the cores and every thread."""
    n_cores, n_logical = scope.n_cores, scope.n_logical
    if n_logical <= 4:
        return tuple(range(1, n_logical + 1))
    shares = {max(n_cores * quarters // 4, 1) for quarters in (1, 2, 3, 4)}
    return tuple(sorted({*shares, n_logical}))


def _threads(now: Configuration, scope: Scope) -> SettingGroup:
    tried = (n for n in thread_counts(scope) if n != now.n_threads)
    return SettingGroup(
        "threads while writing",
        ("near",),
        tuple(Trial(_threads_label(n), {"n_threads": n}) for n in tried),
        cost="a fixed number does not make room when other programs need a core",
    )


def _threads_batch(now: Configuration, scope: Scope) -> SettingGroup:
    tried = (n for n in thread_counts(scope) if n != now.n_threads_batch)
    return SettingGroup(
        "threads while reading",
        ("prompt",),
        tuple(Trial(_threads_label(n), {"n_threads_batch": n}) for n in tried),
        cost="a fixed number does not make room when other programs need a core",
    )


def _threads_label(n: int) -> str:
    return "1 thread" if n == 1 else f"{n} threads"


def _flash_attention(now: Configuration, scope: Scope) -> SettingGroup:
    needs_it = is_quantized(now.type_v)
    can_change = scope.has_flash_attention and not needs_it
    is_off = now.flash_attention == "off"
    other = Trial("on", {"flash_attention": "on"})
    if not is_off:
        other = Trial("off", {"flash_attention": "off"})
    return SettingGroup(
        "flash attention",
        EVERYTHING,
        (other,) if can_change else (),
        cost=""
        if is_off
        else "rows of a draft round otherwise than alone, so that fewer of them are exact to the "
        "bit and a text can part at near ties; the table of scores takes memory",
    )


def _repacking(now: Configuration, scope: Scope) -> SettingGroup:
    on_cpu = not scope.has_gpu or 0 <= now.n_gpu_layers < scope.n_layers
    word, other = ("off", False) if now.use_extra_buffers else ("on", True)
    return SettingGroup(
        "repacked weights",
        ("near", "prompt"),
        (Trial(word, {"use_extra_buffers": other}),) if on_cpu else (),
        cost="other kernels round otherwise: what is kept of chats is computed anew",
    )


def _mapping(now: Configuration) -> SettingGroup:
    word, other = ("read into memory", False) if now.use_mmap else ("mapped", True)
    return SettingGroup(
        "weights",
        ("near",),
        (Trial(word, {"use_mmap": other}),),
        cost="the whole file is read at every start, into memory that no other program shares"
        if now.use_mmap
        else "",
    )


def _micro_batch(now: Configuration, sizes: WorkloadSizes) -> SettingGroup:
    """Only sizes that the timed prompt fills: on a longer one than that they would be the same."""
    shown = min(now.n_ubatch, sizes.n_prompt)
    most = min(sizes.n_prompt, now.n_batch)
    tried = (n for n in MICRO_BATCHES if n <= most and n not in (shown, now.n_ubatch))
    return SettingGroup(
        "micro-batch",
        ("prompt",),
        tuple(Trial(f"{n} tokens", {"n_ubatch": n}) for n in tried),
        cost="the compute buffer grows or shrinks with it: `kvchat plan` says by how much",
    )


def _cache_types(now: Configuration) -> SettingGroup:
    tried = (pair for pair in CACHE_TYPES if pair != (now.type_k, now.type_v))
    return SettingGroup(
        "cache type",
        ("deep",),
        tuple(Trial(k, {"type_k": k, "type_v": v, "flash_attention": "auto"}) for k, v in tried),
        never_taken="it changes the text: `kvchat cache-quality` measures how much",
    )


def _gpu_layers(now: Configuration, scope: Scope) -> SettingGroup:
    """All layers, half of them and none; which of them fit is seen when they are loaded."""
    tried: Iterator[int] = (n for n in (-1, scope.n_layers // 2, 0) if n != _layers(now, scope))
    return SettingGroup(
        "layers on the GPU",
        ("near", "prompt"),
        tuple(Trial(_layers_label(n), {"n_gpu_layers": n}) for n in tried) if scope.has_gpu else (),
        cost="the memory of the GPU: `kvchat plan` says how much",
    )


def _layers(now: Configuration, scope: Scope) -> int:
    return -1 if now.n_gpu_layers >= scope.n_layers else now.n_gpu_layers


def _layers_label(n: int) -> str:
    return "all" if n < 0 else str(n) if n else "none"
