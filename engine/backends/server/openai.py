"""Replies of OpenAI-compatible servers: vLLM, SGLang, Ollama and others.

vLLM 0.11 and SGLang 0.5 accept further settings and count tokens in each chunk; other servers
send the count at the end, or never.
"""

import time
from collections.abc import Generator, Mapping
from contextlib import closing

from engine.backends.server.facts import ServerFacts
from engine.backends.server.http import Http
from engine.backends.server.served_reply import MAX_TPS, ServedReply, count_of
from engine.errors import EngineError, ServerError
from engine.events import Event, FinishReason
from engine.grammar.source import grammar_of
from engine.images import data_url, images_in, parts_of
from engine.parsing import parse_json
from engine.requests import Cancellation, GenerationRequest, Message

CHAT = "/v1/chat/completions"
RAW = "/v1/completions"
MIN_TIMED_S = 0.05
"""Shorter replies arrive in one chunk, which has no measurable speed."""
REASONING = ("reasoning_content", "reasoning")
"""Keys of separate thinking: that of DeepSeek, vLLM and SGLang, and that of OpenRouter."""
STOP_STRINGS = ("stop_reason", "matched_stop")
"""Keys of the stop string that vLLM and SGLang report."""


class OpenAI:
    """Requests replies from one server."""

    def __init__(self, http: Http, facts: ServerFacts) -> None:
        self._http, self._facts = http, facts
        self._is_rich = facts.program in ("vLLM", "SGLang")

    def events(
        self, reply: ServedReply, cancellation: Cancellation
    ) -> Generator[Event, None, None]:
        """Request a reply and yield its events.

        Raises:
            EngineError: the server does not support the request, or fails.
            ContextFullError: the prompt is longer than the context.
        """
        request = reply.request
        path = CHAT if request.has_template else RAW
        body = self._body(request, reply.seed)
        first_at = last_at = 0.0
        # Close the stream here: after an error the traceback would keep the connection open.
        with closing(self._http.stream(path, body, cancellation, reply)) as stream:
            for chunk in stream:
                if (error := chunk.get("error")) is not None:
                    raise ServerError(f"{self._http.name} failed: {self._http.error_text(error)}")
                n_tokens, choice = _read_usage(chunk, reply), _choice(chunk)
                if joined := reply.merge_reasoning(*_texts(choice)):
                    last_at = time.monotonic()
                    first_at = first_at or last_at
                    yield from reply.begun()
                    yield reply.commit_text(joined, n_tokens=n_tokens)
                    yield from reply.cells()
                else:
                    reply.n_emitted += n_tokens  # the count comes after the text
                if (reason := choice.get("finish_reason")) and isinstance(reason, str):
                    reply.reason = self._reason(reason, choice)
        reply.decode_s, reply.prefill_s = last_at - first_at, reply.first_token_s or 0.0
        if reply.decode_s > MIN_TIMED_S and reply.n_emitted > 1:
            reply.decode_tps = min((reply.n_emitted - 1) / reply.decode_s, MAX_TPS)
        yield from reply.cells()

    def _body(self, request: GenerationRequest, seed: int) -> Mapping[str, object]:
        sampling = request.sampling
        body: dict[str, object] = {
            "model": self._facts.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            **self._prompt(request),
        }
        if request.max_tokens is not None:
            body["max_tokens"] = request.max_tokens
        if stop := [text for text in request.stop if text]:
            body["stop"] = stop
        if self._is_rich:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
            body |= {"min_p": sampling.min_p, "repetition_penalty": sampling.repetition_penalty}
            body |= {"top_k": sampling.top_k} if sampling.top_k else {}
            if sampling.stop_tokens:
                body["stop_token_ids"] = list(sampling.stop_tokens)
        elif sampling.stop_tokens:
            raise EngineError(
                f"{self._http.name} does not support stop tokens: leave them out, or use a "
                "stop string"
            )
        grammar = request.grammar or grammar_of(sampling)
        if grammar is not None and not grammar.is_schema:
            raise EngineError(
                f"{self._http.name} supports JSON schemas, not grammars: rewrite "
                f"{grammar.name} as a JSON schema"
            )
        if grammar is not None:
            schema = {"name": "reply", "schema": parse_json(grammar.text), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def _prompt(self, request: GenerationRequest) -> Mapping[str, object]:
        if request.continues or request.continues_text:
            raise EngineError(
                f"{self._http.name} cannot continue a stopped reply: regenerate the reply"
            )
        if request.prompt_tokens is not None:
            return {"prompt": list(request.prompt_tokens)}
        if request.raw_prompt is not None:
            return {"prompt": request.raw_prompt}
        messages = [{"role": each.role, "content": _content(each)} for each in request.messages]
        return {"messages": messages}

    def _reason(self, reason: str, choice: Mapping[str, object]) -> FinishReason:
        match reason:
            case "stop" if any(isinstance(choice.get(name), str) for name in STOP_STRINGS):
                return FinishReason.STOP_STRING
            case "length":
                return FinishReason.LENGTH
            case "abort":
                raise ServerError(f"{self._http.name} ended the reply with an error: see its log")
            case _:
                return FinishReason.END


def _read_usage(chunk: Mapping[str, object], reply: ServedReply) -> int:
    """Record the counts of a chunk; return its new tokens, 0 if it has no counts."""
    usage = chunk.get("usage")
    if not isinstance(usage, dict):
        return 0
    reply.n_prompt = count_of(usage, "prompt_tokens")
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        reply.n_reused = count_of(details, "cached_tokens", reply.n_prompt)
    return max(count_of(usage, "completion_tokens", reply.max_tokens) - reply.n_emitted, 0)


def _choice(chunk: Mapping[str, object]) -> Mapping[str, object]:
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    return first if isinstance(first, dict) else {}


def _texts(choice: Mapping[str, object]) -> tuple[str, str]:
    delta = choice.get("delta")
    parts = delta if isinstance(delta, dict) else choice
    thought = next((parts[name] for name in REASONING if isinstance(parts.get(name), str)), "")
    text = parts.get("content" if parts is delta else "text")
    return str(thought), text if isinstance(text, str) else ""


def _content(message: Message) -> str | list[dict[str, object]]:
    """A message's text, or text and image parts of a question with images.

    Raises:
        ImageError: an image is missing.
    """
    if message.role != "user" or not images_in(message.content):
        return message.content
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part.portable())}}
        for part in parts_of(message.content)
    ]
