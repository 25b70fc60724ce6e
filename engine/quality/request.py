"""Requests for a measurement of cache types, and the laboratory that runs one."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from engine.builds import installed_build
from engine.configuration import Configuration, KVTypes
from engine.errors import EngineError, PresetError
from engine.memory.hardware import find_gpus, this_processor, usable_cores
from engine.memory.kv_cache import CacheShape, check_cache_types, kv_type_name
from engine.model.architecture import Model, read_model
from engine.model.identity import adapters_in_words, identity_of, model_identity
from engine.quality.laboratory import Laboratory, LaboratoryPlan
from engine.quality.needles import needles
from engine.quality.records import (
    CONTROL,
    MIN_VERDICT_TOKENS,
    QualityError,
    Report,
    Subject,
    check_same_subject,
)
from engine.quality.scoring import ContextOpener
from engine.quality.summary import empty_report
from engine.quality.texts import (
    MIN_TEXT_TOKENS,
    Document,
    Text,
    clean_name,
    digest_of,
    documents_of,
)

LABORATORY_CTX = 8192
"""Default for the longest document in tokens: several contexts of this size are open at once."""
MIN_LABORATORY_CTX = 64


@dataclass(frozen=True, slots=True)
class LaboratoryRequest:
    """Model, cache types and texts of a measurement."""

    configuration: Configuration
    """Settings of the model; its cache types and `n_ctx` are ignored."""
    plan: LaboratoryPlan
    texts: tuple[Text, ...]
    haystack: tuple[Text, ...] = ()
    """Texts to hide needles in; empty skips the retrieval questions."""
    n_ctx: int | None = None
    """Longest document; None is `LABORATORY_CTX`, or the training context if that is smaller."""
    n_most: int | None = None
    """Maximum number of text tokens; None uses all."""
    earlier: Report | None = None
    """A report to continue."""


def laboratory_of(
    request: LaboratoryRequest, load: Callable[[Configuration], ContextOpener]
) -> Laboratory:
    """Load the model and prepare a measurement; `Laboratory.close` frees the model.

    Raises:
        ModelFileError: the model's file cannot be read.
        ModelLoadError: the backend cannot load the model.
        QualityError: no text is long enough, the context is too small, or the earlier report has
            another subject.
    """
    configuration, plan = request.configuration, request.plan
    model = read_model(configuration.model_path)
    n_ctx = request.n_ctx or min(model.architecture.n_ctx_train, LABORATORY_CTX)
    if n_ctx < MIN_LABORATORY_CTX:
        raise QualityError(
            f"a context of {n_ctx} tokens is too small: use {MIN_LABORATORY_CTX} or more"
        )
    opener = load(replace(configuration, n_ctx=n_ctx))
    try:
        documents = documents_of(request.texts, opener.vocabulary, n_ctx, request.n_most)
        if request.haystack:
            documents += needles(opener.vocabulary, request.haystack, n_ctx)
        subject = _subject(model, configuration, plan, documents)
        report = request.earlier or empty_report(subject, documents)
        check_same_subject(report.subject, subject)
    except EngineError:
        opener.close()
        raise
    refusal = _refusal(model, configuration, subject)
    notes = tuple(_notes(request, model, documents, n_ctx))
    return Laboratory(opener, plan, documents, report, refusal, notes)


def _refusal(
    model: Model, configuration: Configuration, subject: Subject
) -> Callable[[KVTypes], str | None]:
    """A function that returns why llama.cpp refuses a cache type; torch checks when opening."""
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


def _notes(
    request: LaboratoryRequest, model: Model, documents: tuple[Document, ...], n_ctx: int
) -> Iterator[str]:
    n_tokens = sum(len(each.tokens) for each in documents if not each.answers)
    n_again = len(request.texts) - len({text.text for text in request.texts})
    if n_again:
        yield f"{n_again} texts are duplicates and are scored once"
    if request.haystack and not any(each.answers for each in documents):
        yield f"no retrieval question fits into {n_ctx:,} tokens, so retrieval is not measured"
    if request.n_most is not None and n_tokens + MIN_TEXT_TOKENS > request.n_most:
        yield f"only {n_tokens:,} tokens are scored: --tokens sets this limit (0: no limit)"
    if n_tokens < MIN_VERDICT_TOKENS:
        yield f"{n_tokens:,} tokens are too few for a verdict, which needs {MIN_VERDICT_TOKENS:,}"
    if n_ctx > model.architecture.n_ctx_train:
        yield (
            f"some texts have up to {n_ctx:,} tokens, more than the model's training context of "
            f"{model.architecture.n_ctx_train:,}: results beyond "
            f"{model.architecture.n_ctx_train:,} are poor with any cache type"
        )


def _subject(
    model: Model,
    configuration: Configuration,
    plan: LaboratoryPlan,
    documents: tuple[Document, ...],
) -> Subject:
    """The subject of a measurement; its context fits the longest document."""
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
    """The settings that change figures of cache quality, by their names in a report."""
    window = "whole" if configuration.swa_full else "as trained"
    if configuration.backend == "torch":
        return {
            "backend": configuration.backend,
            "computed in": configuration.dtype,
            "sliding window": window,
            CONTROL: "two rows per forward pass",
        }
    rotation = os.environ.get("LLAMA_ATTN_ROT_DISABLE", "0") in ("", "0")
    settings = {
        "flash attention": configuration.flash_attention,
        "sliding window": window,
        "CPU kernels": "repacked" if configuration.use_extra_buffers else "plain",
        "Hadamard rotation of quantised K and V": "on" if rotation else "off",
        CONTROL: "the other flash attention setting",
    }
    n_layers = configuration.n_gpu_layers
    if n_layers and find_gpus():
        settings["layers on the GPU"] = "all" if n_layers < 0 else str(n_layers)
        settings["cache on the GPU"] = "yes" if configuration.offload_kqv else "no"
    if configuration.lora_paths:
        settings["LoRA"] = adapters_in_words(configuration.adapters, model_identity)
    return settings
