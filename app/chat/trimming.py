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
"""Share of the context that what is kept may fill: a third is free for what comes."""
BYTES_PER_TOKEN = 3.0
"""Of a text whose tokens are not known; mostly more, so that rather too much is counted."""
MIN_BYTES_PER_TOKEN = 1.0
MAX_BYTES_PER_TOKEN = 8.0
"""Texts are hardly ever in longer tokens: so many bytes of a message are a token at least."""
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
"""Shares of the room that a summary's messages may fill as they are estimated, until it is enough:
short messages of numbers have twice as many tokens as those of `BYTES_PER_TOKEN`."""
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

    The last question always stays, and with it the reply to it; less may be free then. None where
    there is no turn before it.

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
    """Bytes of a message's text without its images, and how many those are.

    The screen asks for the size of all that it shows many times a second.
    """
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


def summary_request(
    path: Sequence[StoredMessage],
    *,
    system_prompt: str,
    kept_from: int | None,
    summary: str | None,
    n_ctx: int,
    owner: str,
    share: float = 1.0,
) -> tuple[GenerationRequest, int]:
    """The request for a summary, and how many of the oldest messages do not fit into it.

    It is the chat's prompt up to the end of `path` and an instruction, so that what the cache holds
    of that prompt is reused.

    Args:
        path: What is to be summarised, from the root of the chat on.
        system_prompt: That of the chat.
        kept_from: First message that the model sees now.
        summary: What the model sees in place of the messages before that one.
        n_ctx: Cells of the context.
        owner: The chat, by its name in the cache.
        share: Part of the free cells that the messages may fill, as far as they are estimated.
    """
    max_tokens = min(MAX_SUMMARY_TOKENS, n_ctx // SUMMARY_SHARE)
    fixed = f"{system_prompt}{summary or ''}{INSTRUCTION}"
    n_free = n_ctx - max_tokens - round(len(fixed.encode()) / BYTES_PER_TOKEN)
    start = index_of(kept_from, path)
    per_token = bytes_per_token(path)
    sizes = [n_tokens_of(message, per_token) for message in path]
    first = start
    while (
        sum(sizes[first:]) > share * n_free and (later := _next_question(path, first)) is not None
    ):
        first = later
    messages = prompt_messages(
        system_prompt, path, kept_from=path[first].id if first else None, summary=summary
    )
    request = GenerationRequest(
        messages=with_question(messages, INSTRUCTION),
        sampling=SamplingSettings(temperature=0.0),
        max_tokens=max_tokens,
        owner=owner,
    )
    return request, first - start


def _next_question(messages: Sequence[StoredMessage], first: int) -> int | None:
    later = (i for i in range(first + 1, len(messages)) if messages[i].role == "user")
    return next(later, None)


class Summariser:
    """Makes one summary; whoever polls the client passes its events to `take`.

    Args:
        client: The engine, which must be idle.
        chat_id: The chat that is summarised.
        requests: What is asked, from `summary_request`: the next where the one before is too long.
        done: Takes the text, or why there is none.
    """

    def __init__(
        self,
        client: EngineClient,
        chat_id: int,
        requests: Iterator[GenerationRequest],
        done: Callable[[str | None, str], None],
    ) -> None:
        self.chat_id = chat_id
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
            case OfReply(reply_id, told) if reply_id == SUMMARY:
                return self._is_running and self._take_own(told)
            case _:
                return False

    def _take_own(self, event: Event) -> bool:
        match event:
            case Failed(title, message):
                if title != ContextFullError.title or not self._asks_next():
                    self._end(None, f"{title}: {message}")
            case Finished(reason=FinishReason.CANCELLED):
                self._end(None, "it was stopped")
            case Finished(text=text):
                self._end(text.strip() or None, "the model wrote nothing")
            case _:
                return not isinstance(event, ENGINE_EVENTS)
        return True

    def _asks_next(self) -> bool:
        request = next(self._requests, None)
        if request is not None:
            self._client.generate(request, SUMMARY)
        return request is not None

    def _end(self, text: str | None, problem: str) -> None:
        self._is_running = False
        self._done(text, problem)


N_KNOWN = 256
"""Texts whose tokens are kept in mind; pastes and files are asked about with every keystroke."""


class TokenCounts:
    """Asks the engine how many tokens texts have, one text at a time, and keeps what it said.

    Where the engine is busy with a long text, what is typed meanwhile costs no further question:
    the next one is about the text as it is then.
    """

    def __init__(self, ask: Callable[[int, str], None]) -> None:
        """Counts without answers yet.

        Args:
            ask: Takes a key and a text; `take` gets the key and the count later.
        """
        self._ask = ask
        self._keys = count(1)
        self._known: dict[str, int | None] = {}
        self._asked: tuple[int, str] | None = None

    def of(self, text: str) -> int | None:
        """The tokens of a text; None until the engine has said, and where nobody can count."""
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
        """Keep an answer; one that an earlier engine gave is not heard."""
        if self._asked is None or self._asked[0] != key:
            return
        self._known[self._asked[1]] = n_tokens
        self._asked = None
        while len(self._known) > N_KNOWN:
            del self._known[next(iter(self._known))]

    def forget(self) -> None:
        """Know nothing any more: another model counts in tokens of its own."""
        self._known, self._asked = {}, None
