"""Estimate from its size how much a draft model gains, and whether to load it."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Literal

from engine.configuration import MAX_DRAFT, Configuration
from engine.errors import IncompatiblePairError, ModelFileError
from engine.memory.hardware import has_gpu_backend
from engine.model.gguf import GgufFile, cached_by_header, read_gguf
from engine.model.tensor_table import TokenReads, token_reads
from engine.model.vocabulary import check_headers

MachineKind = Literal["cpu", "gpu"]

ROW_STEPS: dict[MachineKind, tuple[float, float]] = {"cpu": (0.12, 0.55), "gpu": (0.015, 0.06)}
"""Compute time of one more row of a batch, in steps, at best and at worst. CPUs: from many cores
with wide vectors to two cores, where 2, 3, 4 and 8 rows of a 135M model took 1.6, 2.2, 2.8 and 4.5
steps. GPUs: from large models to small ones."""
DRAFT_SLOWER = 1.5
DRAFT_OVERHEAD = 0.05
"""Factor and constant of a draft step's time over its share of bytes, at worst. A 0.5B draft of a
1.5B target took 0.48 steps for 0.33 of the bytes on a T4 (flashspec's README)."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Costs in units of one target step of one token."""

    draft: float
    """One drafted token; 0 for lookup."""
    batch: tuple[float, ...]
    """Verifying batches of 1 to `MAX_DRAFT + 1` rows; the first is 1."""


def share_of(draft: TokenReads, target: TokenReads) -> float:
    """Bytes read by a draft step, divided by those of a target step."""
    return draft.nbytes() / max(1, target.nbytes())


MIN_GAIN = 1.05
"""A smaller gain is not worth the memory and the risk of a loss."""
DRAFT_ACCEPTANCE = (0.5, 0.85)
"""Chat to code, for a smaller model of the same family: reports in llama.cpp's issues 23052 and
23544 and vLLM's pull request 26504 lie between."""
READER_ACCEPTANCE = (0.1, 0.9)
"""From free prose to copied text, for lookup in the chat."""


class Worth(StrEnum):
    """Verdict about a draft model or lookup."""

    USE = "use it"
    """Gains on all expected texts."""
    DEPENDS = "depends on the text"
    NEVER = "never load it"
    """Does not gain, even on text that it guesses well."""
    MISFIT = "cannot draft"


@dataclass(frozen=True, slots=True)
class Gain:
    """Speed-up over plain decoding at the best draft length."""

    factor: float
    n_draft: int
    """0 where no length gains."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A verdict with its figures and the reason."""

    worth: Worth
    reason: str
    low: Gain | None = None
    """Gain with the lowest expected acceptance and highest costs; None if the draft is unusable."""
    high: Gain | None = None
    """With the highest expected acceptance and the lowest costs."""

    @property
    def n_draft(self) -> int:
        """The draft length to start with; 0 if none gains."""
        if self.low is None or self.high is None or not self.high.n_draft:
            return 0
        return max(1, round((self.low.n_draft + self.high.n_draft) / 2))


def should_use_speculation(
    target: TokenReads,
    draft: TokenReads | None,
    *,
    machine: MachineKind = "cpu",
    misfit: str | None = None,
) -> Advice:
    """Whether a draft model or lookup is worth using, the gain to expect and the reason.

    `target` and `draft` are the bytes that a step of each reads; `draft` is None for lookup.
    `misfit` is the reason why the draft model does not match the target.
    """
    if misfit is not None:
        return Advice(Worth.MISFIT, misfit)
    share = 0.0 if draft is None else share_of(draft, target)
    slow_share = 0.0 if draft is None else DRAFT_SLOWER * share + DRAFT_OVERHEAD
    fast, slow = (_batch(target, row_steps) for row_steps in ROW_STEPS[machine])
    costs = StepCosts(share, fast), StepCosts(slow_share, slow)
    low_share, high_share = DRAFT_ACCEPTANCE if draft else READER_ACCEPTANCE
    low, high = best_gain(low_share, costs[1]), best_gain(high_share, costs[0])
    times = [f"{each.draft + each.batch[1] - each.batch[0]:.2f}" for each in costs]
    cost = f"a drafted token takes {' to '.join(dict.fromkeys(times))} of the time of a decode step"
    if share >= 1:
        times_as = "as" if f"{share:.1f}" == "1.0" else f"{share:.1f} times as"
        cost = f"the draft model reads {times_as} many bytes per token as the target; {cost}"
    if high.factor < MIN_GAIN:
        gain = f"a speedup of {high.factor:.2f}x" if high.n_draft else "no speedup"
        return Advice(Worth.NEVER, f"{cost}: {gain} at {high_share:.0%} acceptance", low, high)
    worth = Worth.USE if low.factor >= MIN_GAIN else Worth.DEPENDS
    return Advice(worth, f"{cost}: speedup {low.factor:.2f}x to {high.factor:.2f}x", low, high)


def _batch(target: TokenReads, row_steps: float) -> tuple[float, ...]:
    one = max(1, target.nbytes())
    return tuple(
        target.nbytes(n_rows) / one + row_steps * (n_rows - 1) for n_rows in range(1, MAX_DRAFT + 2)
    )


def best_gain(acceptance: float, costs: StepCosts) -> Gain:
    """The largest speed-up and its draft length; a factor of 1 if none gains.

    A draft of k tokens, each right with the same share if those before it are, commits
    `1 + a + ... + a^k` tokens (Leviathan et al. 2022, arXiv 2211.17192, equation 1) in the time of
    k draft steps and one batch of k + 1 rows.
    """
    shares = accumulate([acceptance] * (len(costs.batch) - 1), lambda share, a: share * a)
    tokens, best = 1.0, Gain(1.0, 0)
    for n_draft, (share, batch) in enumerate(zip(shares, costs.batch[1:], strict=True), 1):
        tokens += share
        factor = tokens / (n_draft * costs.draft + batch)
        if factor > best.factor:
            best = Gain(factor, n_draft)
    return best


def check_draft(configuration: Configuration) -> str | None:
    """The warning about a draft that cannot gain, as `kvchat pairs` prints it; None if it may gain.

    Raises `IncompatiblePairError` if the headers show that the draft's tokens mean something else.
    A file whose header cannot be read is left to llama.cpp.
    """
    if configuration.draft is None:
        return None
    try:
        target = read_gguf(configuration.model_path)
        draft = read_gguf(configuration.draft.model_path)
        check_headers(target, draft)
    except ModelFileError:
        return None
    on_gpu = configuration.n_gpu_layers != 0 and has_gpu_backend()
    return objection(target, draft, "gpu" if on_gpu else "cpu")


@cached_by_header(1)
def objection(target: GgufFile, draft: GgufFile, machine: MachineKind) -> str | None:
    """Why a draft is not worth loading: another vocabulary or no gain; None if it may be."""
    try:
        check_headers(target, draft)
    except IncompatiblePairError as error:
        return str(error)
    except ModelFileError:
        return None
    advice = should_use_speculation(token_reads(target), token_reads(draft), machine=machine)
    if advice.worth is not Worth.NEVER:
        return None
    return (
        f"{draft.path.name} will not make {target.path.name} faster: {advice.reason}; choose a "
        "smaller draft model (`kvchat pairs` lists draft models), or lookup"
    )
