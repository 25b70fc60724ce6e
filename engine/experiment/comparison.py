"""One prompt answered by two arms in turns, driven by the events of an engine."""

from dataclasses import dataclass, field

from engine.configuration import SpeculationSettings
from engine.events import (
    ENGINE_EVENTS,
    Event,
    Failed,
    Finished,
    FinishReason,
    OfReply,
    WorkerStopped,
)
from engine.experiment.arm import Arm, ExperimentError
from engine.experiment.gain import N_LOSS, ORDER, PairedGain, gain_of
from engine.experiment.records import check_speed
from engine.experiment.runner import ArmReply
from engine.experiment.verdict import block_of
from engine.process.protocol import EngineClient
from engine.requests import GenerationRequest
from engine.speculation.stats import first_divergence

REPLY_IDS = (-3, -4)
"""Ids of the replies of the first and the second arm; chats use others."""
MAX_TOKENS = 128
"""Default maximum of tokens in a reply."""
SEED_BITS = 31
"""Bits of a random seed that the user may copy by hand."""
N_WORDS = 4
"""Words that are shown before and after the point where texts diverge."""


ReplyBlock = tuple[ArmReply, ...]
"""Four finished answers, of the arms in `ORDER`."""


@dataclass(slots=True, eq=False)
class Comparison:
    """Two arms that answer one prompt in blocks; `take` receives the client's events."""

    client: EngineClient
    """The engine, which must be idle."""
    request: GenerationRequest
    """The prompt; every reply uses its seed."""
    arms: tuple[Arm, Arm]
    speculation: SpeculationSettings
    """Speculation settings that arms may change; they are restored after the comparison."""
    blocks: list[ReplyBlock] = field(default_factory=list)
    shown: list[ArmReply | None] = field(default_factory=lambda: [None, None])
    """The newest answer of each arm."""
    problem: str | None = None
    """Why it ended early."""
    n_wanted: int = 0
    """Blocks there will be in the end."""
    was_stopped: bool = False
    """Whether the user stopped it."""
    is_running: bool = False
    """Whether a reply is being made."""
    _block: list[ArmReply] = field(default_factory=list)
    """Answers of the block that is not whole yet."""

    @property
    def running_arm(self) -> int | None:
        """The arm that answers now, 0 or 1."""
        return ORDER[len(self._block) - 1] if self.is_running else None

    @property
    def n_replies(self) -> int:
        """Replies begun, in whole blocks and in the one that is not."""
        return len(ORDER) * len(self.blocks) + len(self._block)

    @property
    def gain(self) -> PairedGain | None:
        """Speed of the second arm relative to the first; None before a complete block."""
        return gain_of([block_of([each.stats for each in block]) for block in self.blocks])

    @property
    def has_drafts(self) -> bool:
        """Whether a drafted token was verified in any whole block."""
        return any(answer.stats.n_verified for block in self.blocks for answer in block)

    @property
    def is_settled(self) -> bool:
        """Whether more blocks would change nothing: the faster arm is known, or none drafts."""
        is_undrafted = len(self.blocks) >= N_LOSS and not self.has_drafts
        return is_undrafted or (self.gain is not None and self.gain.is_settled)

    @property
    def remaining_s(self) -> float | None:
        """Seconds until all blocks are done at the pace so far; None at the start."""
        answers = [each for block in self.blocks for each in block] + self._block
        spent_s = sum(each.stats.decode_s for each in answers)
        n_done = sum(each.finished is not None for each in answers)
        n_left = len(ORDER) * self.n_wanted - n_done
        return n_left * spent_s / len(answers) if n_done and self.is_running else None

    def add_blocks(self, n: int = 1) -> None:
        """Measure up to `n` blocks more; it ends earlier where the faster arm is known."""
        self.n_wanted += n
        if not self.is_running:
            self.problem, self.was_stopped = None, False
            self._begin()

    def stop(self) -> None:
        """End the running reply; whole blocks stay."""
        if self.is_running and not self.was_stopped:
            self.was_stopped = True
            self.client.stop(REPLY_IDS[self.running_arm or 0])

    def revoke(self, why: str) -> None:
        """End without the running reply, because the engine is needed elsewhere."""
        if self.is_running:
            self.client.stop(REPLY_IDS[self.running_arm or 0])
            self._end(why)

    def take(self, event: Event) -> bool:
        """Handle an event of its replies; False for one that the conversation should have."""
        match event:
            case WorkerStopped(title, message):
                if self.is_running:
                    self._end(f"{title}: {message}")
                return False
            case OfReply(reply_id, inner) if reply_id in REPLY_IDS:
                is_current = self.is_running and REPLY_IDS.index(reply_id) == self.running_arm
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
        self.client.set_speculation(self.arms[index].of(self.speculation))
        answer = self.shown[index] = ArmReply(self.arms[index])
        self._block.append(answer)
        self.is_running = True
        self.client.generate(self.request, REPLY_IDS[index])

    def _next(self, answer: ArmReply) -> None:
        if self.was_stopped:
            self._end("stopped")
            return
        try:
            check_speed(answer.stats)
        except ExperimentError as error:
            self._end(str(error))
            return
        if len(self._block) < len(ORDER):
            self._begin()
            return
        self.blocks.append(tuple(self._block))
        self._block = []
        if len(self.blocks) >= self.n_wanted or self.is_settled:
            self._end(None)
        else:
            self._begin()

    def _end(self, problem: str | None) -> None:
        self._block = []
        self.is_running = False
        self.n_wanted = len(self.blocks)
        self.problem = problem
        self.client.set_speculation(self.speculation)


@dataclass(frozen=True, slots=True)
class Divergence:
    """First difference between two replies."""

    token: int
    """Number of tokens before the difference."""
    before: str
    """The last words that both have."""
    first: str
    """How the first reply continues; empty if it ends."""
    second: str
    margin: float | None
    """By how many logits the first reply's token was ahead of the next best."""


def divergences(comparison: Comparison) -> list[Divergence | None]:
    """First differences between replies of the two arms, two for each block; None if equal."""
    pairs = [pair for a, b, c, d in comparison.blocks for pair in ((a, b), (d, c))]
    return [_divergence(first, second) for first, second in pairs]


def _divergence(first: ArmReply, second: ArmReply) -> Divergence | None:
    token = first_divergence(first.token_ids, second.token_ids)
    if token is None:
        return None
    end = first_divergence(first.text, second.text)
    end = len(first.text) if end is None else end
    start = max(first.text.rfind(" ", 0, end), first.text.rfind("\n", 0, end)) + 1
    margins = [each.margin for event in first.committed for each in event.tokens]
    return Divergence(
        token=token,
        before=" ".join(first.text[:start].split()[-N_WORDS:]),
        first=" ".join(first.text[start:].split(maxsplit=N_WORDS)[:N_WORDS]),
        second=" ".join(second.text[start:].split(maxsplit=N_WORDS)[:N_WORDS]),
        margin=margins[token] if token < len(margins) else None,
    )
