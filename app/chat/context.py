"""Tokens of a chat, estimated or counted, and what to drop or summarise in a full context."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from app.chat.entries import index_of, prompt_messages, with_question
from app.chat.update import SUMMARY
from app.store.records import StoredMessage
from engine.configuration import SamplingSettings
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

MAX_SHARE = 2 / 3
"""Share of the context that the remaining messages may fill."""
BYTES_PER_TOKEN = 3.0
"""Bytes per token of a text that is not tokenised yet; low, so that estimates are rather high."""
MAX_BYTES_PER_TOKEN = 8.0
"""Bytes per token that real texts hardly ever exceed."""
TURN_TOKENS = 8
"""Tokens that a chat template puts around a message; known templates have 4 to 8."""
IMAGE_TOKENS = 256
"""Estimated tokens of an image; projectors make 64 to 576, and more if they cut tiles."""
INSTRUCTION = (
    "Summarise our conversation so far in at most 200 words. Keep names, numbers, decisions, "
    "open questions and everything that later turns may refer to. Write the summary only."
)
MAX_SUMMARY_TOKENS = 400
SUMMARY_SHARE = 8
"""A summary has at most one token for this many cells of the context."""
MAX_COUNTED = 256
"""Number of texts with cached token counts; pastes and files are counted at every key."""


# --- estimates ---


def n_tokens_of(message: StoredMessage) -> int:
    """Tokens of a message with its template tokens; estimated without token ids."""
    if message.token_ids:
        return len(message.token_ids) + TURN_TOKENS
    images = images_in(message.content)
    n_bytes = len(message.content.encode()) - sum(len(each.reference.encode()) for each in images)
    return round(n_bytes / BYTES_PER_TOKEN) + IMAGE_TOKENS * len(images) + TURN_TOKENS


def is_surely_longer(text: str, n_ctx: int) -> bool:
    """Whether a text exceeds the context, however long its tokens are."""
    return len(text.encode()) > MAX_BYTES_PER_TOKEN * n_ctx


# --- less for the model to read ---


@dataclass(frozen=True, slots=True)
class Trim:
    """The messages that the model would no longer see."""

    context_start: int
    """Id of the first message that it would still see: a question."""
    dropped: tuple[StoredMessage, ...]
    """The messages before it, except those that were dropped earlier."""


def trim_of(
    path: Sequence[StoredMessage],
    *,
    n_ctx: int,
    fixed_text: str = "",
    context_start: int | None = None,
) -> Trim | None:
    """The fewest oldest turns to drop so that a third of the context is free.

    `path` starts at the root; the model sees it from `context_start` on, after `fixed_text`. The
    last question and its reply always stay. None if there is no turn before them.
    """
    start, questions = index_of(context_start, path), _questions_after(context_start, path)
    if not questions:
        return None
    n_fixed = TURN_TOKENS + round(len(fixed_text.encode()) / BYTES_PER_TOKEN)
    n_max = MAX_SHARE * n_ctx - n_fixed
    first = _first_that_fits(questions, path, n_max)
    return Trim(path[first].id, tuple(path[start:first]))


def _questions_after(context_start: int | None, path: Sequence[StoredMessage]) -> list[int]:
    start = index_of(context_start, path)
    return [i for i in range(start + 1, len(path)) if path[i].role == "user"]


def _first_that_fits(firsts: list[int], path: Sequence[StoredMessage], n_max: float) -> int:
    """The first index from which the path has at most `n_max` tokens, or the last index."""
    sizes = [n_tokens_of(message) for message in path]
    return next((i for i in firsts if sum(sizes[i:]) <= n_max), firsts[-1])


def summary_request(
    path: Sequence[StoredMessage],
    *,
    system_prompt: str,
    context_start: int | None,
    summary: str | None,
    n_ctx: int,
    owner: str,
) -> tuple[GenerationRequest, int]:
    """The request for a summary of a path, and how many of the oldest messages it leaves out.

    It is the chat's prompt up to the end of the path and an instruction, so that the cached states
    of that prompt are reused. Messages that do not fit are left out.
    """
    max_tokens = min(MAX_SUMMARY_TOKENS, n_ctx // SUMMARY_SHARE)
    fixed = f"{system_prompt}{summary or ''}{INSTRUCTION}"
    n_free = n_ctx - max_tokens - round(len(fixed.encode()) / BYTES_PER_TOKEN)
    start = index_of(context_start, path)
    first = _first_that_fits([start, *_questions_after(context_start, path)], path, n_free)
    messages = prompt_messages(
        system_prompt, path, context_start=path[first].id if first else None, summary=summary
    )
    request = GenerationRequest(
        messages=with_question(messages, INSTRUCTION),
        sampling=SamplingSettings(temperature=0.0),
        max_tokens=max_tokens,
        owner=owner,
    )
    return request, first - start


class Summary:
    """The summary of a chat while the model writes it; who polls the client passes the events.

    `done` receives the text, or None and the reason.
    """

    def __init__(
        self,
        client: EngineClient,
        chat_id: int,
        request: GenerationRequest,
        done: Callable[[str | None, str], None],
    ) -> None:
        self.chat_id = chat_id
        self.is_running = True
        self._client = client
        self._done = done
        client.generate(request, SUMMARY)

    def stop(self) -> None:
        self._client.stop(SUMMARY)

    def revoke(self, why: str) -> None:
        """End it because the engine is needed for something else."""
        if self.is_running:
            self._end(None, why)

    def take(self, event: Event) -> bool:
        """Handle an event of the summary; False if the conversation should handle it."""
        match event:
            case WorkerStopped(title, message):
                self.revoke(f"{title}: {message}")
                return False
            case OfReply(reply_id, own) if reply_id == SUMMARY and self.is_running:
                return self._handle(own)
            case _:
                return False

    def _handle(self, event: Event) -> bool:
        match event:
            case Failed(title, message):
                self._end(None, f"{title}: {message}")
            case Finished(reason=FinishReason.CANCELLED):
                self._end(None, "generation was stopped")
            case Finished(text=text):
                self._end(text.strip() or None, "the model returned no text")
            case _:
                return not isinstance(event, ENGINE_EVENTS)
        return True

    def _end(self, text: str | None, problem: str) -> None:
        self.is_running = False
        self._done(text, problem)


# --- counts ---


class TokenCounts:
    """Token counts of texts from the engine, which counts one text at a time.

    Text typed during a count needs no further request: the next one has the text of that time.
    `ask` receives a key and a text; `handle` receives the key and the count later.
    """

    def __init__(self, ask: Callable[[int, str], None]) -> None:
        self._ask = ask
        self._keys = count(1)
        self._known: dict[str, int | None] = {}
        self._asked: tuple[int, str] | None = None

    def of(self, text: str) -> int | None:
        """Number of tokens of a text; None until they are counted, or without a tokenizer."""
        if not text:
            return 0
        if text not in self._known and self._asked is None:
            self._asked = (next(self._keys), text)
            self._ask(*self._asked)
        return self._known.get(text)

    def is_counting(self, text: str) -> bool:
        return bool(text) and text not in self._known

    def handle(self, key: int, n_tokens: int | None) -> None:
        """Store a count; one of an earlier engine is ignored."""
        if self._asked is None or self._asked[0] != key:
            return
        self._known[self._asked[1]] = n_tokens
        self._asked = None
        while len(self._known) > MAX_COUNTED:
            del self._known[next(iter(self._known))]

    def forget(self) -> None:
        """Forget all counts: another model has other tokens."""
        self._known, self._asked = {}, None
