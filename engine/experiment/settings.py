"""What is worth trying on a machine: settings grouped by what they decide, and the work timed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from engine.configuration import Configuration
from engine.memory.kv_cache import is_quantized

WorkName = Literal["near", "prompt", "deep"]
"""Decoding in a short chat, reading a prompt, decoding in a long chat."""

NEAR_TOKENS = 32
"""Tokens in the cache when a short chat's writing is timed."""
LEAST_DEEP, MOST_DEEP = 512, 2048
LEAST_READ, MOST_READ = 16, 1024
RUN_SHARE = 1 / 720
"""Of the whole time, what one run takes: 0.25 s of three minutes, so a block takes 1 s."""
LEAST_RUN_S, MOST_RUN_S = 0.25, 2.0
DEEP_SHARE = 1 / 24
"""Of the whole time, what reading a long chat may take, which is timed after it."""
MOST_CTX = MOST_DEEP + MOST_DEEP // 4 + MOST_READ + 256
UBATCHES = (64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Work:
    """What is timed."""

    name: WorkName
    n_held: int
    """Tokens in the cache before the clock starts."""
    n_tokens: int = 0
    """Tokens that are read; decoding ends by time."""
    seconds: float = 0.0
    """How long tokens are decoded."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long runs are."""

    run_s: float
    n_prompt: int
    n_deep: int

    def work(self, name: WorkName) -> Work:
        """A workload of this size."""
        match name:
            case "near":
                return Work(name, NEAR_TOKENS, seconds=self.run_s)
            case "deep":
                return Work(name, self.n_deep, seconds=self.run_s)
            case "prompt":
                return Work(name, NEAR_TOKENS, self.n_prompt)


FIRST_SIZES = Sizes(LEAST_RUN_S, LEAST_READ, LEAST_DEEP)
"""Before any speed is known."""


def sizes_for(prompt_tps: float, budget_s: float, n_ctx: int) -> Sizes:
    """Sizes for a machine that reads `prompt_tps` tokens a second.

    Args:
        prompt_tps: Tokens of a prompt that it reads a second.
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
    has_flash_attention: bool
    """Whether the model can go either way."""


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


Tried = Mapping[str, Mapping[str, object]]
"""Fields of `Configuration` with their values, by what they are called."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, and what is tried for it; its candidates exclude each other."""

    name: str
    work: WorkName
    tried: Callable[[Configuration, Scope, Sizes], Tried]
    cost: str = ""
    """What taking one costs beside time; empty is nothing."""

    def trials(self, best: Configuration, scope: Scope, sizes: Sizes) -> tuple[Trial, ...]:
        """What is tried and is not the best so far itself."""
        found = self.tried(best, scope, sizes).items()
        trials = (Trial(label, changes) for label, changes in found)
        return tuple(each for each in trials if each.of(best) != best)


def thread_counts(scope: Scope) -> tuple[int, ...]:
    """Numbers of threads to try: all of up to four, else shares of the cores and every thread."""
    n_cores, n_logical = scope.n_cores, scope.n_logical
    if n_logical <= 4:
        return tuple(range(1, n_logical + 1))
    shares = {max(n_cores * quarters // 4, 1) for quarters in (1, 2, 3, 4)}
    return tuple(sorted({*shares, n_logical}))


def _threads(scope: Scope, name: str) -> Tried:
    counts = thread_counts(scope)
    return {"1 thread" if n == 1 else f"{n} threads": {name: n} for n in counts}


def _flash_attention(best: Configuration, scope: Scope) -> Tried:
    if not scope.has_flash_attention or is_quantized(best.type_v):
        return {}
    other = "on" if best.flash_attention == "off" else "off"
    return {other: {"flash_attention": other}}


def _ubatch(best: Configuration, sizes: Sizes) -> Tried:
    """Sizes that the timed prompt fills: larger ones would compute the same batch."""
    now = min(best.n_ubatch, sizes.n_prompt)
    most = min(sizes.n_prompt, best.n_batch)
    return {f"{n} tokens": {"n_ubatch": n} for n in UBATCHES if n <= most and n != now}


THREADS_COST = "a fixed number does not adapt when other programs need a core"
SETTINGS = (
    Setting(
        "decode threads", "near", lambda _, scope, __: _threads(scope, "n_threads"),
        THREADS_COST,
    ),
    Setting(
        "prefill threads", "prompt",
        lambda _, scope, __: _threads(scope, "n_threads_batch"), THREADS_COST,
    ),
    Setting(
        "flash attention", "deep", lambda best, scope, _: _flash_attention(best, scope),
        "without it batches round differently from single tokens, so texts can differ at near "
        "ties, and the scores take memory",
    ),
    Setting(
        "ubatch", "prompt", lambda best, _, sizes: _ubatch(best, sizes),
        "it changes the size of the compute buffer (see `kvchat plan`)",
    ),
)  # fmt: skip
"""The fastest to try come first: threads change while the model runs, flash attention and ubatch
take a new context. Each is tried with the best settings so far."""
