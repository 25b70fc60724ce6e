"""Replies of llama-server (llama.cpp 0c1e570), with raw prompts, token ids and counts."""

import base64
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from engine.backends.server.facts import ServerFacts
from engine.backends.server.http import Http
from engine.backends.server.served_reply import (
    MAX_DRAFT,
    MAX_TPS,
    ServedReply,
    bound_number,
    count_of,
    id_of,
    seconds_of,
)
from engine.errors import EngineError, ServerError
from engine.events import Event, FinishReason, TokenKind
from engine.generation.prompt import Piece, ids_within, pieces_of, trim_variants
from engine.grammar.source import GrammarError, grammar_of, is_lark
from engine.images import Image, images_in, parts_of
from engine.parsing import parse_json
from engine.requests import Cancellation, GenerationRequest, Message

MAX_CACHED_TEXTS = 256
"""Replies whose text is cached."""
SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""kvchat's order; samplers that are not listed are off."""
MAX_HELD = 4
"""Tokens of one event: a character of UTF-8 has up to four bytes. The server also holds back what
may begin a stop string."""
MILLI = 1e-3
LAST = ("stop_type", "stopping_word", "truncated", "timings", "tokens_predicted", "error")
"""Requested fields of the last event, which would repeat the prompt otherwise."""

MixedPrompt = list[str | int]
"""A prompt for `/completion`: texts that it tokenises, and token ids between them."""


class LlamaServer:
    """Requests replies from one llama-server."""

    def __init__(self, http: Http, facts: ServerFacts) -> None:
        self._http, self._facts = http, facts
        self._texts: OrderedDict[tuple[int, ...], str] = OrderedDict()

    def events(
        self, reply: ServedReply, cancellation: Cancellation
    ) -> Generator[Event, None, None]:
        """Request a reply and yield its events.

        Raises:
            ServerError: the request fails.
            ContextFullError: the prompt is longer than a slot's context.
        """
        request = reply.request = self._with_known_ids(reply.request)
        if request.continues and not reply.start:
            reply.start = self._text_of(request.continues)
        reply.has_nameless |= bool(request.continues_text)
        n_predict = -1 if request.max_tokens is None else request.max_tokens
        body = {
            "prompt": self._prompt(request),
            "stream": True,
            "cache_prompt": True,
            "return_tokens": True,
            "return_progress": True,
            "timings_per_token": True,
            "n_predict": 0 if request.reads_only else n_predict,
            "stop": [text for text in request.stop if text],
            "response_fields": list(LAST),
            **_sampling(request, reply.seed),
        }
        if len(self._facts.models) > 1:
            body["model"] = self._facts.model
        rounds = _Rounds(reply)
        with closing(self._http.stream("/completion", body, cancellation, reply)) as stream:
            for chunk in stream:
                if (error := chunk.get("error")) is not None:
                    raise ServerError(f"{self._http.name} failed: {self._http.error_text(error)}")
                yield from _events_of(chunk, reply, rounds)
                if reply.reason is not None:
                    break
        if reply.reason is not None:
            with suppress(EngineError):  # the reply is complete; its ids stay unknown
                self._complete_ids(reply)

    def _text_of(self, token_ids: tuple[int, ...]) -> str:
        text = self._texts.get(token_ids)
        if text is None:
            chunk = self._http.post_json("/detokenize", {"tokens": list(token_ids)})
            text = self._texts[token_ids] = str(chunk.get("content", ""))
            if len(self._texts) > MAX_CACHED_TEXTS:
                self._texts.popitem(last=False)
        return text

    def _with_known_ids(self, request: GenerationRequest) -> GenerationRequest:
        """Convert the ids of a request to the server's; `continues` or its text becomes empty."""
        n_vocab, start = self._facts.n_vocab, request.continues_text
        messages = tuple(
            replace(message, token_ids=ids_within(message.token_ids or (), n_vocab))
            for message in request.messages
        )
        ids = ids_within(request.continues, n_vocab)
        if start and ids and self._text_of(ids) == start:
            start = ""
        ids = () if start else ids
        return replace(request, messages=messages, continues=ids, continues_text=start)

    def _prompt(self, request: GenerationRequest) -> MixedPrompt | dict[str, object]:
        text = request.continues_text
        start: MixedPrompt = [text] if text else list(request.continues)
        if request.prompt_tokens is not None:
            return [*request.prompt_tokens, *start]
        if request.raw_prompt is not None:
            return [request.raw_prompt, *start]
        marked = [_with_markers(each, self._facts.media_marker) for each in request.messages]
        if images := [image for _, found in marked for image in found]:
            text = self._render([message for message, _ in marked]) + text
            text += self._text_of(request.continues) if request.continues else ""
            data = [base64.b64encode(image.portable()).decode() for image in images]
            return {"prompt_string": text, "multimodal_data": data}
        return [*self._with_ids(request.messages), *start]

    def _with_ids(self, messages: Sequence[Message]) -> MixedPrompt:
        """The rendered messages, with token ids for replies that detokenize to their text."""
        rendered = self._render(messages)
        pieces = pieces_of(
            messages, self._render, self._facts.vocabulary_id, rendered, forms=_forms
        ) or [Piece(rendered)]
        prompt, text = MixedPrompt(), ""
        for piece in pieces:
            if piece.token_ids and self._text_of(piece.token_ids).strip() == piece.text.strip():
                prompt += [*([text] if text else []), *piece.token_ids]
                text = ""
            else:
                text += piece.text
        return [*prompt, *([text] if text else [])]

    def _render(self, messages: Sequence[Message]) -> str:
        """Render messages with the server's chat template."""
        rendered = [{"role": message.role, "content": message.content} for message in messages]
        prompt = self._http.post_json("/apply-template", {"messages": rendered}).get("prompt")
        if not isinstance(prompt, str):
            raise ServerError(f"{self._http.name} returned no prompt from /apply-template")
        return prompt

    def _complete_ids(self, reply: ServedReply) -> None:
        """Request ids missing in the stream, which has only the last one of a split character."""
        if None not in reply.ids or not reply.n_text:
            return
        chunk = self._http.post_json("/tokenize", {"content": reply.text, "parse_special": False})
        found = chunk.get("tokens")
        ids = [id_of(one) for one in found] if isinstance(found, list) else []
        known = reply.ids[:-1] if reply.reason is FinishReason.END else reply.ids
        agree = len(ids) == len(known) and all(
            one in (None, other) for one, other in zip(known, ids, strict=True)
        )
        if agree:
            reply.ids[: len(ids)] = ids


@dataclass(slots=True)
class _Rounds:
    """Reconstructs rounds from the server's counters.

    The first token of a round with a draft increases `draft_n` by the draft's length; the accepted
    tokens and one more follow with the same counts (`server-context.cpp`).
    """

    reply: ServedReply
    n_drafted: int = 0
    n_accepted: int = 0
    of_round: tuple[int, int] = (0, 0)
    """Drafted and accepted tokens of the current round."""
    n_seen: int = 0
    """Tokens of the current round so far."""
    seen_at: float = 0.0
    elapsed_s: float = 0.0

    def token(
        self, text: str, token: int | None, n_tokens: int, timings: Mapping[str, object]
    ) -> Iterator[Event]:
        """Events of one received token, which may represent several."""
        if count_of(timings, "draft_n") > self.n_drafted:
            yield from self.end()
        if timings:
            self._count(timings)
        self.n_seen += n_tokens
        source = self.reply.program if self.of_round[0] else None
        yield self.reply.commit_text(
            text, token, n_tokens=n_tokens, kind=self._kind(), source=source
        )
        if self.n_seen > self.of_round[1]:
            yield from self.end()

    def end(self) -> Iterator[Event]:
        """Event of the current round, if any; without a draft each token is a round."""
        n_drafted, n_accepted = self.of_round
        if n_drafted and self.n_seen:
            yield self.reply.round(n_drafted, n_accepted, self.n_seen, self.elapsed_s)
        else:
            for _ in range(self.n_seen):
                yield self.reply.round(0, 0, 1, self.elapsed_s / self.n_seen)
        if self.n_seen:
            yield from self.reply.cells()
        self.of_round, self.n_seen = (0, 0), 0

    def _count(self, timings: Mapping[str, object]) -> None:
        """Record the counts of a token; those of a draft come with its first token."""
        drafted, accepted = (count_of(timings, name) for name in ("draft_n", "draft_n_accepted"))
        if drafted > self.n_drafted:
            n_drafted = min(drafted - self.n_drafted, MAX_DRAFT)
            self.of_round = (n_drafted, min(max(accepted - self.n_accepted, 0), n_drafted))
        self.n_drafted, self.n_accepted = drafted, accepted
        if not self.n_seen:
            decoded_s = seconds_of(timings, "predicted_ms", MILLI)
            self.elapsed_s, self.seen_at = max(decoded_s - self.seen_at, 0.0), decoded_s

    def _kind(self) -> TokenKind:
        n_drafted, n_accepted = self.of_round
        if not n_drafted:
            return TokenKind.PLAIN
        if self.n_seen <= n_accepted:
            return TokenKind.DRAFT
        return TokenKind.BONUS if n_accepted == n_drafted else TokenKind.CORRECTION


def _forms(reply: Message) -> list[tuple[Piece, ...]]:
    return [(Piece(text, reply.token_ids or ()),) for text in trim_variants(reply.content)]


def _sampling(request: GenerationRequest, seed: int) -> Mapping[str, object]:
    sampling = request.sampling
    asked: dict[str, object] = {
        "samplers": list(SAMPLERS),
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": sampling.repetition_window,
        "seed": seed,
    }
    grammar = request.grammar or grammar_of(sampling)
    if grammar is None:
        return asked
    if grammar.is_schema:
        return {**asked, "json_schema": parse_json(grammar.text)}
    if is_lark(grammar.text):
        raise GrammarError(
            f"llama-server supports only GBNF grammars: rewrite {grammar.name} as GBNF"
        )
    return {**asked, "grammar": grammar.text}


def _events_of(chunk: Mapping[str, object], reply: ServedReply, rounds: _Rounds) -> Iterator[Event]:
    if isinstance(progress := chunk.get("prompt_progress"), dict):
        yield reply.read(*(count_of(progress, name) for name in ("processed", "total", "cache")))
        return  # ignore the token in a progress event
    found, content, tokens = chunk.get("timings"), chunk.get("content"), chunk.get("tokens")
    timings = found if isinstance(found, dict) else {}
    text = content if isinstance(content, str) else ""
    ids = tokens if isinstance(tokens, list) else []
    _read_timings(reply, timings)
    if ids or text:
        token = id_of(ids[-1]) if ids else None
        n_total = count_of(chunk, "tokens_predicted") or reply.n_emitted + len(ids)
        n_held = max(MAX_HELD, len(ids), *(len(each.encode()) for each in reply.request.stop))
        yield from reply.begun()
        yield from rounds.token(
            text, token, max(min(n_total - reply.n_emitted, n_held), 1), timings
        )
        if token in reply.request.sampling.stop_tokens:
            reply.reason, reply.end_token = FinishReason.STOP_TOKEN, token
    if isinstance(chunk.get("stop_type"), str):
        yield from rounds.end()
        _read_end(chunk, reply)


def _read_timings(reply: ServedReply, timings: Mapping[str, object]) -> None:
    if not timings:
        return
    reply.n_reused = count_of(timings, "cache_n")
    reply.n_prompt = reply.n_reused + count_of(timings, "prompt_n")
    reply.n_drafted = count_of(timings, "draft_n")
    reply.n_accepted = count_of(timings, "draft_n_accepted", reply.n_drafted)
    reply.prefill_s = seconds_of(timings, "prompt_ms", MILLI)
    reply.decode_s = seconds_of(timings, "predicted_ms", MILLI)
    reply.decode_tps = bound_number(timings.get("predicted_per_second"), MAX_TPS) or None


def _read_end(chunk: Mapping[str, object], reply: ServedReply) -> None:
    match chunk["stop_type"]:
        case "eos":
            reply.reason = FinishReason.END
            reply.end_token = reply.ids[-1] if reply.ids else None
        case "word":
            reply.reason = FinishReason.STOP_STRING
        case _:
            is_full = bool(chunk.get("truncated"))
            reply.reason = FinishReason.CONTEXT if is_full else FinishReason.LENGTH


def _with_markers(message: Message, marker: str) -> tuple[Message, list[Image]]:
    """Replace images of a question by the server's marker; return the images too."""
    images = images_in(message.content) if message.role == "user" else []
    if not images:
        return message, []
    text = "".join(
        part.replace(marker, "") if isinstance(part, str) else marker
        for part in parts_of(message.content)
    )
    return replace(message, content=text), images
