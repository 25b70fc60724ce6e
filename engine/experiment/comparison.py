"""One prompt answered by two arms in turns, driven by the events of an engine."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from engine.configuration import SpeculationSettings
from engine.events import (
    ENGINE_EVENTS,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerationStats,
    OfReply,
    PromptReady,
    RoundFinished,
    SpeculationChanged,
    TokensCommitted,
    WorkerStopped,
)
from engine.experiment.arm import Arm, ExperimentError
from engine.experiment.gain import PairedGain, gain_of
from engine.experiment.records import Sample, sample_of
from engine.experiment.verdict import block_of
from engine.process.protocol import EngineClient
from engine.requests import GenerationRequest
from engine.speculation.stats import first_divergence

REPLY_IDS = (-3, -4)
"""Ids of the replies of the first and the second arm; chats use others."""
ORDER = (0, 1, 1, 0)
"""The arms of a block's four replies."""
MAX_TOKENS = 128
"""Default maximum of tokens in a reply."""
SEED_BITS = 31
"""Bits of a random seed that the user may copy by hand."""
N_WORDS = 4
"""Words that are shown before and after the point where texts diverge."""


class Answer:
    """One reply of an arm, as far as it has come."""

    def __init__(self, arm: Arm, clock: Callable[[], float]) -> None:
        self.arm = arm
        self.committed: list[TokensCommitted] = []
        self.stats = GenerationStats()
        self.note: str | None = None
        """Why it drafts in another way than its arm, or not at all."""
        self.finished: Finished | None = None
        self._clock = clock
        self._start_s: float | None = None
        self._end_s: float | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        if self.finished is not None:
            return self.finished.text
        return "".join(event.text for event in self.committed)

    @property
    def elapsed_s(self) -> float | None:
        """Seconds since the end of the prefill; None before."""
        if self.finished is not None:
            return self.finished.stats.decode_s
        if self._start_s is None:
            return None
        return (self._end_s or self._clock()) - self._start_s

    @property
    def decode_tps(self) -> float | None:
        """Tokens per second after the prefill."""
        if self.finished is not None:
            return self.finished.stats.decode_tps
        elapsed_s = self.elapsed_s
        return self.stats.n_emitted / elapsed_s if elapsed_s and self.stats.n_emitted else None

    def margin(self, index: int) -> float | None:
        """By how many logits a token was ahead of the next best; None if that is not known."""
        margins = [token.margin for event in self.committed for token in event.tokens]
        return margins[index] if index < len(margins) else None

    def handle(self, event: Event) -> None:
        """Count one event of this reply."""
        match event:
            case PromptReady():
                self._start_s = self._clock()
            case TokensCommitted():
                self.committed.append(event)
            case RoundFinished():
                self.stats = self.stats.with_rounds((event,))
            case SpeculationChanged(note=note):
                self.note = note
            case Finished():
                self.finished = event
                self.stats = event.stats
            case _:
                pass

    def stop_clock(self) -> None:
        """Record the end of a reply that did not finish."""
        self._end_s = self._end_s or self._clock()


AnswerBlock = tuple[Answer, ...]
"""Four finished answers, of the arms in `ORDER`."""


class Comparison:
    """Two arms that answer one prompt in blocks; the owner of the client passes events to `take`.

    Args:
        client: The engine, which must be idle.
        request: The prompt; every reply uses its seed.
        arms: The two arms.
        speculation: What the arms leave out; the engine has these settings when nothing runs.
        clock: Time in seconds.
    """

    def __init__(
        self,
        client: EngineClient,
        request: GenerationRequest,
        arms: tuple[Arm, Arm],
        *,
        speculation: SpeculationSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request = request
        self.arms = arms
        self.blocks: list[AnswerBlock] = []
        self.shown: list[Answer | None] = [None, None]
        """The newest answer of each arm."""
        self.problem: str | None = None
        """Why it ended early."""
        self.n_wanted = 0
        """Blocks there will be in the end."""
        self.was_stopped = False
        """Whether the user stopped it."""
        self._client = client
        self.speculation = speculation
        self._clock = clock
        self._block: list[Answer] = []
        """Answers of the block that is not whole yet."""
        self._is_running = False

    @property
    def is_running(self) -> bool:
        """Whether a reply is being made."""
        return self._is_running

    @property
    def running_arm(self) -> int | None:
        """The arm that answers now, 0 or 1."""
        return ORDER[len(self._block) - 1] if self._is_running else None

    @property
    def n_replies(self) -> int:
        """Replies begun, in whole blocks and in the one that is not."""
        return len(ORDER) * len(self.blocks) + len(self._block)

    @property
    def gain(self) -> PairedGain | None:
        """How many times as fast the second arm is; None before a whole block."""
        return gain_of([block_of(*map(_sample, block)) for block in self.blocks])

    @property
    def has_drafts(self) -> bool:
        """Whether a drafted token was verified in any whole block."""
        return any(answer.stats.n_verified for block in self.blocks for answer in block)

    @property
    def remaining_s(self) -> float | None:
        """Seconds until all blocks are done; None while there is no speed to go by."""
        answers = [each for block in self.blocks for each in block] + self._block
        times = [each.elapsed_s for each in answers if each.finished and each.elapsed_s]
        current = self._block[-1] if self._block else None
        limit = self.request.max_tokens
        if not times and current and current.decode_tps and limit:
            times = [limit / current.decode_tps]
        if not times or not self._is_running:
            return None
        n_left = len(ORDER) * self.n_wanted - self.n_replies + 1
        spent_s = current.elapsed_s or 0.0 if current else 0.0
        return max(n_left * sum(times) / len(times) - spent_s, 0.0)

    def add_blocks(self, n: int = 1) -> None:
        """Measure up to `n` blocks more; it ends earlier where the faster arm is known."""
        self.n_wanted += n
        if not self._is_running:
            self.problem, self.was_stopped = None, False
            self._begin()

    def stop(self) -> None:
        """End the running reply; whole blocks stay."""
        if self._is_running and not self.was_stopped:
            self.was_stopped = True
            self._client.stop(REPLY_IDS[self.running_arm or 0])

    def revoke(self, why: str) -> None:
        """End without the running reply, because the engine is needed elsewhere."""
        if self._is_running:
            self._client.stop(REPLY_IDS[self.running_arm or 0])
            self._end(why)

    def take(self, event: Event) -> bool:
        """Handle an event of its replies; False for one that the conversation should have."""
        match event:
            case WorkerStopped(title, message):
                if self._is_running:
                    self._end(f"{title}: {message}")
                return False
            case OfReply(reply_id, inner) if reply_id in REPLY_IDS:
                is_current = self._is_running and REPLY_IDS.index(reply_id) == self.running_arm
                return is_current and self._handle(inner)
            case _:
                return False

    def _handle(self, event: Event) -> bool:
        answer = self._block[-1]
        answer.handle(event)
        match event:
            case Failed(title, message):
                self._end(f"{title}: {message}")
            case Finished(reason=reason):
                self.was_stopped |= reason is FinishReason.CANCELLED
                self._next(answer)
            case _:
                return not isinstance(event, ENGINE_EVENTS)
        return True

    def _begin(self) -> None:
        index = ORDER[len(self._block)]
        if not self._block:
            self.shown = [None, None]
        self._client.set_speculation(self.arms[index].of(self.speculation))
        answer = self.shown[index] = Answer(self.arms[index], self._clock)
        self._block.append(answer)
        self._is_running = True
        self._client.generate(self.request, REPLY_IDS[index])

    def _next(self, answer: Answer) -> None:
        if self.was_stopped:
            self._end("stopped")
            return
        try:
            _sample(answer)
        except ExperimentError as error:
            self._end(str(error))
            return
        if len(self._block) < len(ORDER):
            self._begin()
            return
        self.blocks.append(tuple(self._block))
        self._block = []
        if len(self.blocks) >= self.n_wanted or (self.gain is not None and self.gain.is_settled):
            self._end(None)
        else:
            self._begin()

    def _end(self, problem: str | None) -> None:
        if self._block:
            self._block[-1].stop_clock()
        self._block = []
        self._is_running = False
        self.n_wanted = len(self.blocks)
        self.problem = problem
        self._client.set_speculation(self.speculation)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two replies stop being the same."""

    token: int
    """How many tokens they share."""
    before: str
    """The last words that both have."""
    first: str
    """How the first reply continues; empty if it ends."""
    second: str
    margin: float | None
    """By how many logits the first reply's token was ahead of the next best."""


def divergences(comparison: Comparison) -> list[Divergence | None]:
    """Where the replies of the two arms diverge, twice for each block; None if they do not."""
    pairs = [pair for a, b, c, d in comparison.blocks for pair in ((a, b), (d, c))]
    return [_divergence(first, second) for first, second in pairs]


def _divergence(first: Answer, second: Answer) -> Divergence | None:
    assert first.finished is not None
    assert second.finished is not None
    token = first_divergence(first.finished.token_ids, second.finished.token_ids)
    if token is None:
        return None
    start = _shared_words(first.text, second.text)
    return Divergence(
        token=token,
        before=" ".join(first.text[:start].split()[-N_WORDS:]),
        first=" ".join(first.text[start:].split(maxsplit=N_WORDS)[:N_WORDS]),
        second=" ".join(second.text[start:].split(maxsplit=N_WORDS)[:N_WORDS]),
        margin=first.margin(token),
    )


def _shared_words(one: str, other: str) -> int:
    """Length of the common start, back to the start of a word."""
    end = first_divergence(one, other)
    end = len(one) if end is None else end
    return max(one.rfind(" ", 0, end), one.rfind("\n", 0, end)) + 1


def _sample(answer: Answer) -> Sample:
    assert answer.finished is not None
    return sample_of(answer.arm.name, answer.finished)


def as_values(comparison: Comparison) -> dict[str, object]:
    """A comparison as JSON values: conditions, verdict and every reply of whole blocks."""
    gain, request = comparison.gain, comparison.request
    return {
        "arms": [arm.name for arm in comparison.arms],
        "seed": request.seed,
        "max_tokens": request.max_tokens,
        "sampling": asdict(request.sampling),
        "problem": comparison.problem,
        "gain": None if gain is None else asdict(gain),
        "is_faster": None if gain is None else gain.is_faster,
        "is_slower": None if gain is None else gain.reversed.is_faster,
        "is_settled": gain is not None and gain.is_settled,
        "divergences": [each and asdict(each) for each in divergences(comparison)],
        "blocks": [[_values(answer) for answer in block] for block in comparison.blocks],
    }


def _values(answer: Answer) -> dict[str, object]:
    assert answer.finished is not None
    return {
        "arm": answer.arm.name,
        "text": answer.text,
        "note": answer.note,
        "finish_reason": answer.finished.reason.value,
        "stats": answer.finished.stats.figures(),
    }
