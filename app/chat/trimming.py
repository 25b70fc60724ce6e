"""Tokens of a chat, estimated or counted, and what has to go where they fill the context."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from app.chat.entries import index_of, prompt_messages, with_question
from app.chat.update import SUMMARY
from app.store.records import StoredMessage
from engine.configuration import SamplingSettings
from engine.errors import ContextFullError
from engine.events import (
    ENGINE_EVENTS,
    Event,
    Failed,
    Finished,
    FinishReason,
    OfReply,
    WorkerStopped,
)
from engine.images import images_in
from engine.process.protocol import EngineClient
from engine.requests import GenerationRequest

MAX_KEPT = 2 / 3
"""Share of the context that the remaining messages may fill."""
BYTES_PER_TOKEN = 3.0
"""Of a text whose tokens are not known; most texts have more, so the count is rather too high."""
MIN_BYTES_PER_TOKEN = 1.0
MAX_BYTES_PER_TOKEN = 8.0
"""Tokens of real texts are hardly ever longer."""
TURN_TOKENS = 8
"""Tokens that a chat template puts around a message; those of known templates are 4 to 8."""
IMAGE_TOKENS = 256
"""Of an image, until its prompt is read: projectors give 64 to 576, and more where they cut tiles.
"""
N_SIZES = 4096
"""Texts whose sizes are remembered."""
INSTRUCTION = (
    "Summarise our conversation so far in at most 200 words. Keep names, numbers, decisions, "
    "open questions and everything that later turns may refer to. Write the summary only."
)
MAX_SUMMARY_TOKENS = 400
FEWER = (1.0, 0.75, 0.5, 0.25)
"""Shares of the free cells that a summary's messages may fill by their estimate, tried in order:
short messages of numbers have twice as many tokens as `BYTES_PER_TOKEN` gives."""
SUMMARY_SHARE = 8
"""A summary has at most one token of this many cells of the context."""


@dataclass(frozen=True, slots=True)
class Trim:
    """The messages that the model would no longer see."""

    kept_from: int
    """Id of the first message that it would still see: a question."""
    dropped: tuple[StoredMessage, ...]
    """The messages before it, except those that were dropped earlier."""


def trim_of(
    path: Sequence[StoredMessage], *, n_ctx: int, fixed_text: str = "", kept_from: int | None = None
) -> Trim | None:
    """The fewest oldest turns to drop so that a third of the context is free.

    The last question and its reply always stay. None if there is no turn before them.

    Args:
        path: The shown messages from the root on.
        n_ctx: Cells of the context.
        fixed_text: System prompt and summary, which stay.
        kept_from: First message that the model sees now.
    """
    start = index_of(kept_from, path)
    per_token = bytes_per_token(path)
    sizes = [n_tokens_of(message, per_token) for message in path]
    n_fixed = round(len(fixed_text.encode()) / per_token) + TURN_TOKENS
    questions = [i for i in range(start + 1, len(path)) if path[i].role == "user"]
    if not questions:
        return None
    fitting = (i for i in questions if n_fixed + sum(sizes[i:]) <= MAX_KEPT * n_ctx)
    first = next(fitting, questions[-1])
    return Trim(path[first].id, tuple(path[start:first]))


def n_tokens_of(message: StoredMessage, per_token: float = BYTES_PER_TOKEN) -> int:
    """Tokens of a message with what the template puts around it; estimated where not known."""
    if message.token_ids:
        return len(message.token_ids) + TURN_TOKENS
    n_bytes, n_images = _size_of(message.content)
    return round(n_bytes / per_token) + IMAGE_TOKENS * n_images + TURN_TOKENS


_sizes: dict[int, tuple[int, int]] = {}
"""Sizes by the hash of a text: a text with a file in it has megabytes and is not kept here."""


def _size_of(text: str) -> tuple[int, int]:
    """Bytes of a text without its images, and their number; asked for many times a second."""
    key = hash(text)
    if key not in _sizes:
        while len(_sizes) >= N_SIZES:
            del _sizes[next(iter(_sizes))]
        images = images_in(text)
        n_bytes = len(text.encode()) - sum(len(each.reference.encode()) for each in images)
        _sizes[key] = (n_bytes, len(images))
    return _sizes[key]


def is_surely_longer(text: str, n_ctx: int) -> bool:
    """Whether a text alone is more than the context holds, however long its tokens are."""
    return len(text.encode()) > MAX_BYTES_PER_TOKEN * n_ctx


def bytes_per_token(path: Sequence[StoredMessage]) -> float:
    """The length of a token of a chat, from its replies, at most `BYTES_PER_TOKEN`."""
    known = [message for message in path if message.token_ids]
    n_known = sum(len(message.token_ids or ()) for message in known)
    n_bytes = sum(len(message.content.encode()) for message in known)
    if not n_known:
        return BYTES_PER_TOKEN
    return min(max(n_bytes / n_known, MIN_BYTES_PER_TOKEN), BYTES_PER_TOKEN)


def summary_requests(
    path: Sequence[StoredMessage],
    *,
    system_prompt: str,
    kept_from: int | None,
    summary: str | None,
    n_ctx: int,
    owner: str,
) -> Iterator[tuple[GenerationRequest, int]]:
    """Requests for a summary, each of fewer messages, and how many of the oldest it leaves out.

    A request is the chat's prompt up to the end of `path` and an instruction, so that the cached
    states of that prompt are reused.

    Args:
        path: The messages to summarise, from the root of the chat on.
        system_prompt: That of the chat.
        kept_from: First message that the model sees now.
        summary: What the model sees in place of the messages before that one.
        n_ctx: Cells of the context.
        owner: The chat, by its name in the cache.
    """
    max_tokens = min(MAX_SUMMARY_TOKENS, n_ctx // SUMMARY_SHARE)
    fixed = f"{system_prompt}{summary or ''}{INSTRUCTION}"
    n_free = n_ctx - max_tokens - round(len(fixed.encode()) / BYTES_PER_TOKEN)
    start, per_token = index_of(kept_from, path), bytes_per_token(path)
    sizes = [n_tokens_of(message, per_token) for message in path]
    questions = [i for i in range(start + 1, len(path)) if path[i].role == "user"]
    firsts = [start, *questions]
    for share in FEWER:
        fitting = (i for i in firsts if sum(sizes[i:]) <= share * n_free)
        first = next(fitting, firsts[-1])
        messages = prompt_messages(
            system_prompt, path, kept_from=path[first].id if first else None, summary=summary
        )
        request = GenerationRequest(
            messages=with_question(messages, INSTRUCTION),
            sampling=SamplingSettings(temperature=0.0),
            max_tokens=max_tokens,
            owner=owner,
        )
        yield request, first - start


class Summariser:
    """Makes one summary; whatever polls the client passes its events to `take`.

    Args:
        client: The engine, which must have a free slot.
        chat_id: The chat that is summarised.
        requests: From `summary_requests`: the next is asked if the one before is too long.
        done: Receives the text, or None and why there is none.
    """

    def __init__(
        self,
        client: EngineClient,
        chat_id: int,
        requests: Iterator[tuple[GenerationRequest, int]],
        done: Callable[[str | None, str], None],
    ) -> None:
        self.chat_id = chat_id
        self.n_left_out = -1
        """Messages that the summary leaves out."""
        self._client = client
        self._requests = requests
        self._done = done
        self._is_running = self._asks_next()

    @property
    def is_running(self) -> bool:
        """The summary is being written."""
        return self._is_running

    def is_running_in(self, chat_id: int | None) -> bool:
        """The summary of a chat is being written."""
        return self._is_running and self.chat_id == chat_id

    def stop(self) -> None:
        """End it without a summary."""
        self._client.stop(SUMMARY)

    def revoke(self, why: str) -> None:
        """End it because the engine is needed for something else."""
        if self._is_running:
            self._end(None, why)

    def take(self, event: Event) -> bool:
        """Handle an event of the summary; False for one that the conversation should have."""
        match event:
            case WorkerStopped(title, message):
                self.revoke(f"{title}: {message}")
                return False
            case OfReply(reply_id, own) if reply_id == SUMMARY:
                return self._is_running and self._handle(own)
            case _:
                return False

    def _handle(self, event: Event) -> bool:
        match event:
            case Failed(title, message):
                if title != ContextFullError.title or not self._asks_next():
                    self._end(None, f"{title}: {message}")
            case Finished(reason=FinishReason.CANCELLED):
                self._end(None, "generation was stopped")
            case Finished(text=text):
                self._end(text.strip() or None, "the model returned no text")
            case _:
                return not isinstance(event, ENGINE_EVENTS)
        return True

    def _asks_next(self) -> bool:
        fewer = (each for each in self._requests if each[1] > self.n_left_out)
        request, n_left_out = next(fewer, (None, 0))
        if request is not None:
            self.n_left_out = n_left_out
            self._client.generate(request, SUMMARY)
        return request is not None

    def _end(self, text: str | None, problem: str) -> None:
        self._is_running = False
        self._done(text, problem)


N_KNOWN = 256
"""Texts whose tokens are remembered; pastes and files are counted with every key."""


class TokenCounts:
    """Asks the engine for the tokens of texts, one text at a time, and remembers the answers.

    Text typed while the engine counts costs no further request: the next one is about the text as
    it is then.

    Args:
        ask: Receives a key and a text; `take` gets the key and the count later.
    """

    def __init__(self, ask: Callable[[int, str], None]) -> None:
        self._ask = ask
        self._keys = count(1)
        self._known: dict[str, int | None] = {}
        self._asked: tuple[int, str] | None = None

    def of(self, text: str) -> int | None:
        """The tokens of a text; None until they are counted, or if nobody can count."""
        if not text:
            return 0
        if text not in self._known and self._asked is None:
            self._asked = (next(self._keys), text)
            self._ask(*self._asked)
        return self._known.get(text)

    def is_counting(self, text: str) -> bool:
        """Whether an answer is still to come."""
        return bool(text) and text not in self._known

    def take(self, key: int, n_tokens: int | None) -> None:
        """Store an answer; one of an earlier engine is ignored."""
        if self._asked is None or self._asked[0] != key:
            return
        self._known[self._asked[1]] = n_tokens
        self._asked = None
        while len(self._known) > N_KNOWN:
            del self._known[next(iter(self._known))]

    def forget(self) -> None:
        """Forget all counts: another model has other tokens."""
        self._known, self._asked = {}, None
