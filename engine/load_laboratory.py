"""A model and texts to a laboratory of cache types, ready to run."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from engine.backends import TORCH_MISSING
from engine.backends.base import Backend, Vocabulary
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.llama_cpp.model import LlamaCppVocabulary, LoadedModel
from engine.builds import installed_build
from engine.cache.namespace import adapters_in_words
from engine.configuration import Configuration, KVTypes
from engine.errors import EngineError, ModelLoadError, PresetError
from engine.memory.hardware import find_gpus, this_processor, usable_cores
from engine.memory.kv_cache import CacheShape, check_cache_types, kv_type_name, with_types
from engine.model.architecture import Model, read_model
from engine.model.identity import identity_of, model_identity
from engine.quality.laboratory import Laboratory, Plan
from engine.quality.questions import questions
from engine.quality.records import (
    CONTROL,
    LEAST_TOKENS,
    QualityError,
    Report,
    Subject,
    check_same_subject,
)
from engine.quality.row_store import RowStore
from engine.quality.scoring import BatchShape, OpenedKind
from engine.quality.summary import empty_report
from engine.quality.texts import (
    LEAST_OF_A_TEXT,
    Document,
    Text,
    clean_name,
    digest_of,
    documents_of,
)

LABORATORY_CTX = 8192
"""Longest text of a measurement that says nothing else: its contexts lie in memory side by side."""
LEAST_LABORATORY_CTX = 64
CONTROL_SHARE = 4
"""llama.cpp's control decodes a chunk in so many batches, through the other attention."""
CONTROL_ROWS = 2
"""Rows that torch's control decodes at once: up to two take another product (`torch/device.py`)."""


@dataclass(frozen=True, slots=True)
class LaboratoryRequest:
    """What to measure of which model."""

    configuration: Configuration
    """Its cache types and context do not count."""
    plan: Plan
    texts: tuple[Text, ...]
    haystack: tuple[Text, ...] = ()
    """What needles are hidden in; without any nothing is asked."""
    n_ctx: int | None = None
    """Longest text without a break; None is `LABORATORY_CTX`, or what the model was trained on."""
    n_most: int | None = None
    """Tokens after which texts are left out; None takes all."""
    earlier: Report | None = None
    """A report to go on with."""
    rows_path: Path | None = None
    """Where rows are kept until the measurement is complete."""


def open_laboratory(request: LaboratoryRequest) -> Laboratory:
    """A measurement that is ready to run; closing it frees the model.

    Raises:
        ModelFileError: the model's file cannot be read.
        ModelLoadError: llama.cpp refused it.
        QualityError: no text is long enough, a context is too small, or the earlier report is of
            something else.
    """
    configuration, plan = request.configuration, request.plan
    model = read_model(configuration.model_path)
    n_most = _longest(request, model)
    if n_most < LEAST_LABORATORY_CTX:
        raise QualityError(
            f"a context of {n_most} tokens is too small to measure in: {LEAST_LABORATORY_CTX} are "
            "the fewest"
        )
    contexts = torch_contexts if configuration.backend == "torch" else llama_cpp_contexts
    opener = contexts(replace(configuration, n_ctx=n_most))
    try:
        documents = _documents(request, opener.vocabulary, n_most)
        subject = _subject(model, configuration, plan, documents)
        report = request.earlier or empty_report(subject, documents)
        check_same_subject(report.subject, subject)
        store = RowStore(request.rows_path, subject.digest)
        store.read()
    except EngineError:
        opener.close()
        raise
    notes = tuple(_laboratory_notes(request, model, documents, n_most))
    refusal = _refusal(model, configuration, subject)
    return Laboratory(opener, plan, documents, report, refusal, store, notes)


def subjects_of(requests: Iterable[LaboratoryRequest]) -> Iterator[Subject]:
    """What each request would measure of one model in llama.cpp, which is read without weights.

    Raises:
        ModelFileError: the model's file cannot be read.
        ModelLoadError: llama.cpp refused it.
        QualityError: no text is long enough.
    """
    weights: LoadedModel | None = None
    try:
        for each in requests:
            model = read_model(each.configuration.model_path)
            if weights is None:
                weights = LoadedModel(each.configuration, NativeLog(), vocab_only=True)
                vocabulary = LlamaCppVocabulary(weights.take())
            documents = _documents(each, vocabulary, _longest(each, model))
            yield _subject(model, each.configuration, each.plan, documents)
    finally:
        if weights is not None:
            weights.release()


def _longest(request: LaboratoryRequest, model: Model) -> int:
    """Most tokens of a text that is read without a break."""
    return request.n_ctx or min(model.architecture.n_ctx_train, LABORATORY_CTX)


def _documents(
    request: LaboratoryRequest, vocabulary: Vocabulary, n_ctx: int
) -> tuple[Document, ...]:
    """The texts of a request, and its questions behind them."""
    found = documents_of(request.texts, vocabulary, n_ctx, request.n_most)
    return found + (questions(vocabulary, request.haystack, n_ctx) if request.haystack else ())


class Contexts:
    """One loaded model, of which contexts are opened that differ in cache kinds and batches.

    The weights lie in memory once.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        open_kind: Callable[[KVTypes, BatchShape], OpenedKind],
        free: Callable[[], None],
        *,
        is_concurrent: bool = False,
    ) -> None:
        """No context yet.

        Args:
            vocabulary: The model's.
            open_kind: Opens a context.
            free: Frees the weights.
            is_concurrent: Whether contexts decode quicker at once, in a thread each.
        """
        self.vocabulary = vocabulary
        self.is_concurrent = is_concurrent
        self._open_kind = open_kind
        self._free = free
        self._opened: list[Backend] = []

    def open(self, kind: KVTypes, shape: BatchShape) -> OpenedKind:
        opened = self._open_kind(kind, shape)
        self._opened.append(opened.backend)
        return opened

    def close(self) -> None:
        for backend in self._opened:
            backend.close()
        self._free()


def llama_cpp_contexts(configuration: Configuration) -> Contexts:
    """A model in llama.cpp, whose contexts differ in the types of keys and values.

    Batches of `n_ubatch` tokens are computed as one: llama.cpp writes their keys and values into
    the cache before attention reads any (`build_attn` in `src/llama-graph.cpp`, 0c1e57098), so that
    every row reads what was quantised, its own too. On a processor one thread for each context
    wastes nothing on waiting for other threads, which takes most of the time where other programs
    run; the figures are the same. Flash attention makes f16 of what is f32: those are read without
    (`build_attn_mha`, the same file). The control has flash attention where the reference has none
    and none where it has: smaller batches alone take the same kernels below 64 tokens
    (`GGML_FA_TILE_Q`, `ggml/src/ggml-cpu/common.h`) and show nothing.

    Raises:
        ModelLoadError: llama.cpp refused the file.
    """
    log = NativeLog()
    weights = LoadedModel(configuration, log)

    def open_kind(kind: KVTypes, shape: BatchShape) -> OpenedKind:
        changed = with_types(_alone(configuration, shape), kind)
        is_flash = configuration.flash_attention != "off" and not is_wide(kind)
        if shape.is_control:
            model = read_model(configuration.model_path)
            is_flash = not is_flash and model.architecture.has_flash_attention
        if shape.is_control or is_wide(kind):
            changed = replace(changed, flash_attention="on" if is_flash else "off")
        if shape.n_threads is not None:
            changed = replace(changed, n_threads=shape.n_threads, n_threads_batch=None)
        backend = LlamaCppBackend(changed, log, model=weights, n_rows=shape.n_rows)
        n_step = max(1, shape.n_rows // CONTROL_SHARE) if shape.is_control else None
        return OpenedKind(backend, backend.compute_bytes, n_step)

    vocabulary = LlamaCppVocabulary(weights.take())
    is_concurrent = not (configuration.n_gpu_layers and find_gpus())
    return Contexts(vocabulary, open_kind, weights.release, is_concurrent=is_concurrent)


def torch_contexts(configuration: Configuration) -> Contexts:
    """A model in torch, whose contexts differ in their cache kinds.

    Rows read what older tokens became in the cache, and the last ones exactly (`WindowedCache`),
    whatever the batches are.

    Raises:
        ModelLoadError: torch is not installed, has no code for the model, or it does not fit into
            memory.
    """
    try:
        from engine.backends.torch.backend import TorchBackend  # takes a second or two
    except ImportError as error:
        raise ModelLoadError(TORCH_MISSING.format(reason=error)) from error
    log = NativeLog()
    least = BatchShape(LEAST_LABORATORY_CTX, LEAST_LABORATORY_CTX, LEAST_LABORATORY_CTX)
    # What holds the weights computes nothing.
    first = replace(_alone(configuration, least), kv_cache="f16", draft=None)
    weights = TorchBackend(first, log)

    def open_kind(kind: KVTypes, shape: BatchShape) -> OpenedKind:
        changed = replace(_alone(configuration, shape), kv_cache=str(kind))
        backend = TorchBackend(changed, log, like=weights, n_rows=shape.n_rows)
        return OpenedKind(backend, backend.read_bytes, CONTROL_ROWS if shape.is_control else None)

    return Contexts(weights.vocabulary, open_kind, weights.close)


def is_wide(kind: KVTypes) -> bool:
    """Whether keys and values are f32."""
    return {kind.k, kind.v} == {"f32"}


def _alone(configuration: Configuration, shape: BatchShape) -> Configuration:
    """The configuration for one line in a context of a shape."""
    return replace(
        configuration,
        n_slots=1,
        kv_unified=False,
        n_ctx=shape.n_ctx,
        n_batch=shape.n_batch,
        n_ubatch=shape.n_batch,
    )


def _refusal(
    model: Model, configuration: Configuration, subject: Subject
) -> Callable[[KVTypes], str | None]:
    """Why a kind cannot be used with a model; torch says that itself when one is opened."""
    if configuration.backend == "torch":
        return lambda _: None
    shape = CacheShape(
        n_ctx=subject.n_ctx,
        n_ubatch=subject.n_chunk,
        type_k="f16",
        type_v="f16",
        flash_attention=configuration.flash_attention != "off"
        and model.architecture.has_flash_attention,
    )

    def refusal(kind: KVTypes) -> str | None:
        try:
            type_k, type_v = kv_type_name(kind.k), kv_type_name(kind.v)
            check_cache_types(model.architecture, replace(shape, type_k=type_k, type_v=type_v))
        except PresetError as error:
            return str(error)
        return None

    return refusal


def _laboratory_notes(
    request: LaboratoryRequest, model: Model, documents: tuple[Document, ...], n_most: int
) -> Iterator[str]:
    n_tokens = sum(len(each.tokens) for each in documents if not each.answers)
    n_again = len(request.texts) - len({text.text for text in request.texts})
    if n_again:
        yield f"{n_again} of the texts are others again, and are scored once"
    if request.haystack and not any(each.kind == "needle" for each in documents):
        yield f"no needles fit into {n_most:,} tokens: what is found in long texts is not known"
    if request.n_most is not None and n_tokens + LEAST_OF_A_TEXT > request.n_most:
        yield (
            f"the first {n_tokens:,} tokens of the texts are scored: --tokens says how many, and 0 "
            "takes all"
        )
    if n_tokens < LEAST_TOKENS:
        yield (
            f"{n_tokens:,} tokens give figures and no verdict: {LEAST_TOKENS:,} are the least to "
            "choose a type by"
        )
    if n_most > model.architecture.n_ctx_train:
        yield (
            f"texts of up to {n_most:,} tokens are longer than the "
            f"{model.architecture.n_ctx_train:,} that the model was trained on: it reads their "
            "ends badly with any cache"
        )


def _subject(
    model: Model, configuration: Configuration, plan: Plan, documents: tuple[Document, ...]
) -> Subject:
    """What the measurement is of; a context holds the longest document."""
    n_ctx = max(len(each.tokens) for each in documents)
    gpus = find_gpus() if configuration.n_gpu_layers else ()
    devices = (this_processor().name, *(gpu.name for gpu in gpus))
    return Subject(
        model=clean_name(configuration.model_path.name),
        model_identity=identity_of(model.file),
        texts_digest=digest_of(documents),
        build=installed_build(configuration.backend),
        device=clean_name(", ".join(devices)),
        n_threads=configuration.n_threads or usable_cores()[0],
        n_ctx=n_ctx,
        n_chunk=min(plan.n_chunk, n_ctx),
        reference=plan.reference,
        settings=subject_settings(configuration),
    )


def subject_settings(configuration: Configuration) -> dict[str, str]:
    """The settings that figures of cache quality hang on, as a report names them."""
    if configuration.backend == "torch":
        return {
            "backend": configuration.backend,
            "computed in": configuration.dtype,
            "sliding window": "whole" if configuration.swa_full else "as trained",
            CONTROL: f"{CONTROL_ROWS} rows at once",
        }
    rotation = os.environ.get("LLAMA_ATTN_ROT_DISABLE", "0") in ("", "0")
    settings = {
        "flash attention": configuration.flash_attention,
        "sliding window": "whole" if configuration.swa_full else "as trained",
        "CPU kernels": "repacked" if configuration.use_extra_buffers else "plain",
        "rotation of quantised caches": "on" if rotation else "off",
        CONTROL: "the other attention",
    }
    n_layers = configuration.n_gpu_layers
    if n_layers and find_gpus():
        settings["layers on the GPU"] = "all" if n_layers < 0 else str(n_layers)
        settings["cache on the GPU"] = "yes" if configuration.offload_kqv else "no"
    if configuration.lora_paths:
        settings["LoRA"] = adapters_in_words(configuration.adapters, model_identity)
    return settings
