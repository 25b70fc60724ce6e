"""Replies of Ollama (0.12) by its own protocol, which has its counts and times."""

import base64
from collections.abc import Iterator, Mapping

from engine.backends.server.facts import ServerFacts
from engine.backends.server.http import Http
from engine.backends.server.served_reply import ServedReply, count_of, rate_of, seconds_of
from engine.errors import EngineError, ServerError
from engine.events import Event, FinishReason
from engine.grammar.source import grammar_of
from engine.images import images_in, parts_of
from engine.parsing import parse_json
from engine.requests import Cancellation, GenerationRequest, Message

NANO = 1e-9


class Ollama:
    """Makes replies at one Ollama."""

    def __init__(self, http: Http, facts: ServerFacts) -> None:
        self._http = http
        self._facts = facts

    def events(self, reply: ServedReply, cancellation: Cancellation) -> Iterator[Event]:
        """What the reply tells.

        Raises:
            EngineError: Ollama does not know what is asked, or fails.
        """
        path = "/api/chat" if reply.request.has_template else "/api/generate"
        body = self._body(reply.request, reply.seed)
        for told in self._http.stream(path, body, cancellation, reply, is_sse=False):
            if (error := told.get("error")) is not None:
                raise ServerError(f"{self._http.name} gave up: {self._http.told(error)}")
            if text := reply.woven(*_parts(told)):
                yield from reply.begun()
                yield reply.commit_text(text, n_tokens=0)
            if told.get("done"):
                self._take_end(told, reply)
                yield from reply.cells()

    def _body(self, request: GenerationRequest, seed: int) -> Mapping[str, object]:
        sampling = request.sampling
        if request.continues or request.prompt_tokens is not None or sampling.stop_tokens:
            raise EngineError(
                f"{self._http.name} knows no token ids: it cannot go on with a reply that was "
                "cut, nor begin or end one by ids"
            )
        options: dict[str, object] = {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": sampling.repetition_window,
            "seed": seed,
        }
        if request.max_tokens is not None:
            options["num_predict"] = request.max_tokens
        if stop := [text for text in request.stop if text]:
            options["stop"] = stop
        body: dict[str, object] = {"model": self._facts.model, "stream": True, "options": options}
        grammar = request.grammar or grammar_of(sampling)
        if grammar is not None and not grammar.is_schema:
            raise EngineError("Ollama takes JSON schemas and no grammars")
        if grammar is not None:
            body["format"] = parse_json(grammar.text)
        if request.raw_prompt is not None:
            return {**body, "prompt": request.raw_prompt, "raw": True}
        said = [_said(each) for each in request.messages]
        return {**body, "messages": said}

    def _take_end(self, told: Mapping[str, object], reply: ServedReply) -> None:
        reply.n_prompt = count_of(told, "prompt_eval_count")
        reply.n_emitted = count_of(told, "eval_count", reply.most_tokens)
        reply.prefill_s = seconds_of(told, "prompt_eval_duration", NANO)
        reply.decode_s = seconds_of(told, "eval_duration", NANO)
        reply.decode_tps = rate_of(reply.n_emitted, reply.decode_s)
        is_cut = told.get("done_reason") == "length"
        reply.reason = FinishReason.LENGTH if is_cut else FinishReason.END


def _parts(told: Mapping[str, object]) -> tuple[str, str]:
    """Thoughts and text of a line."""
    message = told.get("message")
    parts = message if isinstance(message, dict) else told
    thought, text = parts.get("thinking"), parts.get("content", told.get("response"))
    return (thought if isinstance(thought, str) else "", text if isinstance(text, str) else "")


def _said(message: Message) -> dict[str, object]:
    """A message, with the images that a question names beside its text.

    Raises:
        ImageError: one is gone.
    """
    images = images_in(message.content) if message.role == "user" else []
    if not images:
        return {"role": message.role, "content": message.content}
    parts = parts_of(message.content)
    text = "".join(part if isinstance(part, str) else f"[{part.name}]" for part in parts)
    data = [base64.b64encode(image.portable()).decode() for image in images]
    return {"role": message.role, "content": text, "images": data}
