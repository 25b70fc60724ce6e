"""What is worth trying on a machine: settings grouped by what they decide, and the work timed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from engine.configuration import Configuration, ControllerName, PredictorName
from engine.memory.kv_cache import is_quantized

WorkName = Literal["near", "prompt", "deep", "reply"]
"""Writing in a short chat, reading, writing in a long chat, and whole replies with drafts."""

TURN: Mapping[WorkName, float] = {"prompt": 512, "near": 256, "deep": 256, "reply": 256}
"""Tokens by which a setting is judged that changes several: a turn reads 512 and writes 256."""
NEAR_TOKENS = 32
"""Tokens in the cache when a short chat's writing is timed."""
LEAST_DEEP, MOST_DEEP = 512, 2048
LEAST_READ, MOST_READ = 16, 1024
LEAST_REPLY, MOST_REPLY = 24, 64
RUN_SHARE = 1 / 720
"""Of the whole time, what one run takes: 0.25 s of three minutes, so a block takes 1 s."""
LEAST_RUN_S, MOST_RUN_S = 0.25, 2.0
DEEP_SHARE = 1 / 24
"""Of the whole time, what reading a long chat may take, which is timed after it."""
MOST_CTX = MOST_DEEP + MOST_DEEP // 4 + MOST_READ + 256
UBATCHES = (64, 128, 256, 512, 1024)
LOOKUP_DRAFT = 3


@dataclass(frozen=True, slots=True)
class Work:
    """What is timed."""

    name: WorkName
    n_held: int
    """Tokens in the cache before the clock starts."""
    n_tokens: int = 0
    """Tokens that are read, or most tokens of a reply; writing ends by time."""
    seconds: float = 0.0
    """How long is written."""
    prompt: str = ""
    """What is replied to."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long runs are."""

    run_s: float
    n_prompt: int
    n_deep: int
    n_reply: int

    def work(self, name: WorkName, prompt: str = "") -> Work:
        """A workload of this size."""
        match name:
            case "near":
                return Work(name, NEAR_TOKENS, seconds=self.run_s)
            case "deep":
                return Work(name, self.n_deep, seconds=self.run_s)
            case "prompt":
                return Work(name, NEAR_TOKENS, self.n_prompt)
            case "reply":
                return Work(name, 0, self.n_reply, prompt=prompt)


FIRST_SIZES = Sizes(LEAST_RUN_S, LEAST_READ, LEAST_DEEP, LEAST_REPLY)
"""Before any speed is known."""


def sizes_for(prompt_tps: float, decode_tps: float, budget_s: float, n_ctx: int) -> Sizes:
    """Sizes for a machine that reads and writes so many tokens a second.

    Args:
        prompt_tps: Tokens of a prompt that it reads a second.
        decode_tps: Tokens that it writes a second.
        budget_s: Time for everything.
        n_ctx: Context of the runs.
    """
    run_s = _within(budget_s * RUN_SHARE, LEAST_RUN_S, MOST_RUN_S)
    n_prompt = round(prompt_tps * run_s / LEAST_READ) * LEAST_READ
    return Sizes(
        run_s=run_s,
        n_prompt=round(_within(n_prompt, LEAST_READ, min(MOST_READ, n_ctx // 4))),
        n_deep=round(
            min(_within(prompt_tps * budget_s * DEEP_SHARE, LEAST_DEEP, MOST_DEEP), n_ctx // 2)
        ),
        n_reply=round(_within(2 * decode_tps * run_s, LEAST_REPLY, MOST_REPLY)),
    )


def _within(value: float, low: float, high: float) -> float:
    return max(min(value, high), low)


@dataclass(frozen=True, slots=True)
class Scope:
    """What is known of machine and model before anything is measured."""

    n_cores: int
    """Physical cores."""
    n_begin: int
    """Threads that kvchat begins with by itself: one for each core that others leave."""
    n_logical: int
    """Threads that the processor runs at once."""
    n_layers: int
    """Of the model, the output counting as one."""
    has_gpu: bool
    has_flash_attention: bool
    """Whether the model can go either way."""
    can_draft: bool
    """Whether refuted tokens can be taken back."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings to try in the place of those so far."""

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
    works: tuple[WorkName, ...]
    trials: tuple[Trial, ...]
    cost: str = ""
    """What taking one costs beside time; empty is nothing."""
    never_taken: str = ""
    """Why a faster one is reported and not taken; empty where it is taken."""


def thread_counts(scope: Scope) -> tuple[int, ...]:
    """Numbers of threads to try: all of up to four, else shares of the cores and every thread."""
    n_cores, n_logical = scope.n_cores, scope.n_logical
    if n_logical <= 4:
        return tuple(range(1, n_logical + 1))
    shares = {max(n_cores * quarters // 4, 1) for quarters in (1, 2, 3, 4)}
    return tuple(sorted({*shares, n_logical}))


THREADS_COST = "a fixed number does not make room when other programs need a core"


def _threads(best: Configuration, scope: Scope, _: Sizes) -> SettingGroup:
    counts = [n for n in thread_counts(scope) if n != best.n_threads]
    trials = tuple(Trial(_threads_label(n), {"n_threads": n}) for n in counts)
    return SettingGroup("threads while writing", ("near",), trials, THREADS_COST)


def _threads_batch(best: Configuration, scope: Scope, _: Sizes) -> SettingGroup:
    counts = [n for n in thread_counts(scope) if n != best.n_threads_batch]
    trials = tuple(Trial(_threads_label(n), {"n_threads_batch": n}) for n in counts)
    return SettingGroup("threads while reading", ("prompt",), trials, THREADS_COST)


def _threads_label(n: int) -> str:
    return "1 thread" if n == 1 else f"{n} threads"


def _flash_attention(best: Configuration, scope: Scope, _: Sizes) -> SettingGroup:
    can_change = scope.has_flash_attention and not is_quantized(best.type_v)
    if best.flash_attention == "off":
        other, cost = Trial("on", {"flash_attention": "on"}), ""
    else:
        other, cost = (
            Trial("off", {"flash_attention": "off"}),
            "drafted tokens round otherwise than single ones, so texts can differ at near ties; "
            "the table of scores takes memory",
        )
    trials = (other,) if can_change else ()
    return SettingGroup("flash attention", ("deep", "prompt"), trials, cost)


def _ubatch(best: Configuration, _: Scope, sizes: Sizes) -> SettingGroup:
    """Sizes that the timed prompt fills: larger ones would compute the same batch."""
    now = min(best.n_ubatch, sizes.n_prompt)
    most = min(sizes.n_prompt, best.n_batch)
    counts = [n for n in UBATCHES if n <= most and n not in (now, best.n_ubatch)]
    trials = tuple(Trial(f"{n} tokens", {"n_ubatch": n}) for n in counts)
    cost = "the compute buffer grows or shrinks with it: `kvchat plan` says by how much"
    return SettingGroup("ubatch", ("prompt",), trials, cost)


def _drafts(best: Configuration, scope: Scope, _: Sizes) -> SettingGroup:
    """No drafts, the automatic rule and a fixed look-up, each unless it is what drafts now."""
    now = best.speculation
    auto = PredictorName.COMBINED if best.draft else PredictorName.SUFFIX
    fixed = replace(now, predictor=PredictorName.LOOKUP, controller=ControllerName.FIXED)
    tried = {
        "none": replace(now, predictor=PredictorName.OFF),
        f"{auto}:auto": replace(now, predictor=auto, controller=ControllerName.AUTO),
        f"lookup:fixed:{LOOKUP_DRAFT}": replace(fixed, n_draft=LOOKUP_DRAFT),
    }
    trials = tuple(Trial(label, {"speculation": each}) for label, each in tried.items())
    others = tuple(each for each in trials if each.of(best) != best)
    return SettingGroup("drafts", ("reply",), others if scope.can_draft else ())


def _gpu_layers(best: Configuration, scope: Scope, _: Sizes) -> SettingGroup:
    """All layers, half of them and none; which of them fit is seen when they are loaded."""
    now = -1 if best.n_gpu_layers >= scope.n_layers else best.n_gpu_layers
    counts = [n for n in (-1, scope.n_layers // 2, 0) if n != now and scope.has_gpu]
    labels = {-1: "all", 0: "none"}
    trials = tuple(Trial(labels.get(n, str(n)), {"n_gpu_layers": n}) for n in counts)
    cost = "the memory of the GPU: `kvchat plan` says how much"
    return SettingGroup("layers on the GPU", ("near", "prompt"), trials, cost)


def _cache_type(best: Configuration, _: Scope, __: Sizes) -> SettingGroup:
    other = Trial("q8_0", {"type_k": "q8_0", "type_v": "q8_0", "flash_attention": "auto"})
    trials = (other,) if (best.type_k, best.type_v) == ("f16", "f16") else ()
    reason = "it changes the text: `kvchat cache-quality` measures how much"
    return SettingGroup("cache type", ("deep",), trials, never_taken=reason)


GROUPS: tuple[Callable[[Configuration, Scope, Sizes], SettingGroup], ...] = (
    _threads,
    _threads_batch,
    _flash_attention,
    _ubatch,
    _drafts,
    _gpu_layers,
    _cache_type,
)
"""What is settled soonest comes first: threads change while the model runs, flash attention, ubatch
and cache type take a new context, layers another load. Each is given the best settings so far."""
