"""Detect a server's program, models and features."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from engine.backends.server.http import (
    Http,
    MissingError,
    ServerBusyError,
    ServerSilentError,
    ServerUnreachableError,
)
from engine.backends.server.served_reply import size_of
from engine.errors import ServerError, shown
from engine.http import REPORT_EVERY_S
from engine.parsing import parse_json
from engine.validation import did_you_mean

Program = Literal["llama-server", "vLLM", "SGLang", "Ollama", "OpenAI"]
"""`OpenAI` is any other server with `/v1/chat/completions`."""
RETRY_S = 0.5
MAX_MODELS = 10_000
MAX_NAME = 4096
MAX_WORD = 80
OWNERS: Mapping[str, Program] = {"llamacpp": "llama-server", "vllm": "vLLM", "sglang": "SGLang"}
"""Owner of the models at `/v1/models`: llama-server 0c1e570, vLLM 0.32, SGLang 0.5."""
OWN_PATHS: tuple[tuple[str, str, Program], ...] = (
    ("/props", "default_generation_settings", "llama-server"),
    ("/api/version", "version", "Ollama"),
    ("/model_info", "model_path", "SGLang"),
    ("/get_model_info", "model_path", "SGLang"),  # its former name
)
"""A path and a key of its answer that only one program has."""
VERSION_PATHS: Mapping[Program, tuple[str, ...]] = {
    "Ollama": ("/api/version",),
    "vLLM": ("/version",),
    "SGLang": ("/server_info", "/get_server_info"),
}
MEDIA_MARKER = "<__media__>"
"""Image placeholder of a llama-server that does not report its own."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about a server and one of its models; None if the server does not report one."""

    program: Program
    models: tuple[str, ...]
    """Names of all models of the server."""
    model: str
    """Name of the model in use."""
    version: str = ""
    file_type: str = ""
    n_vocab: int | None = None
    n_ctx: int | None = None
    """Maximum tokens of prompt and reply together."""
    n_ctx_train: int | None = None
    n_slots: int | None = None
    """Number of parallel replies."""
    has_template: bool = True
    has_slots: bool = False
    """Whether llama-server reports its slots."""
    has_metrics: bool = False
    """Whether the server has Prometheus metrics."""
    speculates: bool | None = None
    """Whether the server drafts tokens."""
    sees_images: bool = False
    """Whether the model accepts images, as far as the server reports."""
    media_marker: str = MEDIA_MARKER
    """Placeholder of an image in a prompt for llama-server."""

    @property
    def vocabulary_id(self) -> str:
        """Fingerprint of the server's vocabulary; token ids are only valid for this server."""
        parts = (self.program, self.model, self.file_type, self.n_vocab)
        return f"server-{hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()}"

    @property
    def has_ids(self) -> bool:
        """Whether replies include token ids and prompts may consist of ids."""
        return self.program == "llama-server"


def ask_facts(http: Http, wanted: str | None) -> ServerFacts:
    """Detect program, model and features of a server; wait while it loads its model.

    Args:
        http: The server.
        wanted: Name of the model or a unique part of it; None is the first model.

    Raises:
        ServerError: it cannot be reached, is not a model server, or lacks the model.
    """
    since, limit_s, n_reports = time.monotonic(), http.limits.loading_s, 0
    try:
        while True:
            try:
                return _ask(http, wanted)
            except ServerBusyError as error:
                waited_s = time.monotonic() - since
                if waited_s > limit_s:
                    raise
                if waited_s >= n_reports * REPORT_EVERY_S:
                    n_reports += 1
                    http.report_wait(f"{error}; waited {waited_s:.0f} of at most {limit_s:g} s")
            except (ServerUnreachableError, ServerSilentError) as error:
                raise type(error)(f"{error}; check the address {http.url}") from error
            time.sleep(RETRY_S)
    finally:
        if n_reports:
            http.report_wait("")


def _ask(http: Http, wanted: str | None) -> ServerFacts:
    listed = _models(http)
    names = tuple(listed)
    if not names:
        raise ServerError(f"{http.name} serves no model: load a model on the server")
    model = _chosen_model(names, wanted, http.name)
    entry = listed[model]
    program = OWNERS.get(str(entry.get("owned_by"))) or _program(http)
    if program == "llama-server":
        return _llama_server(http, names, model, entry)
    is_ollama, modalities = program == "Ollama", _object(entry.get("architecture"))
    return ServerFacts(
        program,
        names,
        model,
        version=_version(http, program),
        n_ctx=size_of(entry.get("max_model_len")),
        has_metrics=not is_ollama and _answers(http, "/metrics"),
        # Ollama does not list image support; it refuses an image itself.
        sees_images=is_ollama or "image" in _list(modalities.get("input_modalities")),
    )


def _chosen_model(names: Sequence[str], wanted: str | None, server: str) -> str:
    if wanted is None or wanted in names:
        return names[0] if wanted is None else wanted
    found = [name for name in names if wanted.lower() in name.lower()]
    if len(found) == 1:
        return found[0]
    has = ", ".join(shown(name) for name in names[:8]) + (" ..." if len(names) > 8 else "")
    what = f"{len(found)} models with {wanted!r}" if found else f"no model {wanted!r}"
    raise ServerError(f"{server} has {what}{did_you_mean(wanted, names)}; it serves {has}")


def _models(http: Http) -> dict[str, Mapping[str, object]]:
    """The models by name, as `/v1/models` lists them."""
    try:
        listed = http.get_json("/v1/models")
    except MissingError as error:
        raise ServerError(
            f"{http.name} returned no model list at /v1/models: use a llama-server, vLLM, "
            "SGLang, Ollama or OpenAI-compatible server"
        ) from error
    entries = map(_object, _list(listed.get("data"))[:MAX_MODELS])
    named = ((entry.get("id"), entry) for entry in entries)
    return {
        name: entry for name, entry in named if isinstance(name, str) and 0 < len(name) <= MAX_NAME
    }


def _program(http: Http) -> Program:
    for path, key, program in OWN_PATHS:
        try:
            if key in http.get_json(path):
                return program
        except ServerSilentError:
            raise  # it would be silent at each
        except ServerError:
            continue
    return "OpenAI"


def _llama_server(
    http: Http, names: tuple[str, ...], model: str, entry: Mapping[str, object]
) -> ServerFacts:
    props = http.get_json("/props")
    meta = _object(entry.get("meta"))
    settings = _object(props.get("default_generation_settings"))
    slots: Sequence[Mapping[str, object]] = ()
    is_busy = False
    if props.get("endpoint_slots"):
        try:
            slots = slots_of(http)
        except ServerSilentError:
            is_busy = True  # a long prompt is read before it answers
        except ServerError:
            pass  # it hides them
    return ServerFacts(
        "llama-server",
        names,
        model,
        version=_word(props.get("build_info")),
        file_type=_word(props.get("model_ftype")),
        n_vocab=size_of(meta.get("n_vocab")),
        n_ctx=size_of(settings.get("n_ctx")),
        n_ctx_train=size_of(meta.get("n_ctx_train")),
        n_slots=size_of(props.get("total_slots")),
        has_template=bool(props.get("chat_template")),
        has_slots=bool(slots) or is_busy,
        has_metrics=bool(props.get("endpoint_metrics")),
        speculates=any(slot.get("speculative") for slot in slots) if slots else None,
        sees_images=_object(props.get("modalities")).get("vision") is True,
        media_marker=_word(props.get("media_marker")) or MEDIA_MARKER,
    )


def slots_of(http: Http) -> list[Mapping[str, object]]:
    """Request the state of each llama-server slot.

    Raises:
        ServerError: the server does not report its slots.
    """
    try:
        return [slot for slot in _list(parse_json(http.get("/slots"))) if isinstance(slot, dict)]
    except ValueError as error:
        raise ServerError(f"{http.name} sent invalid JSON at /slots") from error


def _version(http: Http, program: Program) -> str:
    for path in VERSION_PATHS.get(program, ()):
        with suppress(ServerError):
            return _word(http.get_json(path).get("version"))
    return ""


def _answers(http: Http, path: str) -> bool:
    with suppress(ServerError):
        http.get(path)
        return True
    return False


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _word(value: object) -> str:
    return value[:MAX_WORD] if isinstance(value, str) else ""
