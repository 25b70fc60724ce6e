"""What llama-server cannot be told, and what it does instead."""

from collections.abc import Iterator

from engine.configuration import (
    DRAFT_N_CTX,
    Configuration,
    ControllerName,
    DraftConfiguration,
    PredictorName,
)
from engine.model.architecture import Model
from engine.presets.export.flag_sets import FlagSet
from engine.presets.export.speculation import has_head, is_drafted_behind


def unsaid(configuration: Configuration, model: Model | None, flags: FlagSet) -> Iterator[str]:
    """Name each setting that does not arrive, with its value and what happens there."""
    yield from _flags(configuration, flags)
    yield from _head(configuration, model, flags)
    if has_head(configuration, flags) and configuration.speculation.predictor == "draft":
        yield (
            "the draft model stays behind: llama-server has one length for it and for the model's "
            "own head, and the head drafts"
        )
    else:
        yield from _speculation(configuration, flags)
    if any(override.device.startswith("GPU ") for override in configuration.tensor_overrides):
        yield (
            "the tensor overrides name GPUs as CUDA builds do (CUDA0): write Vulkan0 or ROCm0 for "
            "other builds"
        )
    has_tokenizer = model is not None and model.file.text("tokenizer.ggml.model") is not None
    if model is not None and has_tokenizer and model.file.chat_template is None:
        yield "the model has no chat template: llama-server will guess one"


def _flags(configuration: Configuration, flags: FlagSet) -> Iterator[str]:
    if configuration.swa_full and not flags.has_swa_full:
        yield f"swa_full stays behind: {flags.title} always keeps every token of such layers"
    if configuration.n_slots > 1 and not configuration.kv_unified and not flags.has_unified:
        yield f"kv_unified is off: the slots of {flags.title} share their cells all the same"
    if not configuration.use_extra_buffers and not flags.has_repack:
        yield f"use_extra_buffers is off: {flags.title} has none, and needs no flag for it"
    if flags.name == "ik" and configuration.flash_attention == "auto":
        yield "flash_attention is auto: ik_llama.cpp reads that as on"


def _head(configuration: Configuration, model: Model | None, flags: FlagSet) -> Iterator[str]:
    n_draft = configuration.n_mtp_draft
    if n_draft and model is not None and not model.architecture.head_layers:
        yield (
            f"n_mtp_draft is {n_draft}: the model has no next-token head, and llama-server ends "
            "where it is asked for one; set it to 0"
        )
    if n_draft and flags.name == "legacy":
        yield (
            f"n_mtp_draft is {n_draft}: builds before May 2026 leave the model's own head unused"
        )


def _speculation(configuration: Configuration, flags: FlagSet) -> Iterator[str]:
    speculation, draft = configuration.speculation, configuration.draft
    match speculation.predictor:
        case PredictorName.CUSTOM:
            yield (
                f"the predictor is {speculation.predictor_title}: it is a plugin of kvchat, "
                "llama-server has none and decodes without speculation"
            )
        case PredictorName.LOOKUP | PredictorName.SUFFIX | PredictorName.COMBINED:
            yield from _lookup(configuration)
        case PredictorName.DRAFT if draft is not None:
            yield from _draft_context(configuration, draft)
            if speculation.controller is not ControllerName.FIXED:
                yield (
                    f"the {speculation.controller} rule stays behind: llama-server drafts up to "
                    f"a length of {speculation.n_draft} in every round"
                )
    if draft is not None and is_drafted_behind(configuration, flags):
        yield from _draft_context(configuration, draft)
    elif draft is not None and speculation.predictor is not PredictorName.DRAFT:
        yield (
            f"the draft model {draft.model_path.name} stays behind: the predictor is "
            f"{speculation.predictor}"
        )


def _draft_context(configuration: Configuration, draft: DraftConfiguration) -> Iterator[str]:
    if draft.n_ctx != min(configuration.n_ctx, DRAFT_N_CTX):
        yield (
            f"the draft's n_ctx is {draft.n_ctx}: llama-server gives it a context as long "
            f"as its target's, {configuration.n_ctx}"
        )


def _lookup(configuration: Configuration) -> Iterator[str]:
    speculation = configuration.speculation
    length = speculation.n_draft_of_server
    if speculation.predictor is not PredictorName.LOOKUP:
        yield f"the predictor is {speculation.predictor}: llama-server gets its look-up instead"
    if speculation.controller is not ControllerName.FIXED:
        yield (
            f"the {speculation.controller} rule stays behind: llama-server's look-up drafts up to "
            f"a length of {length} in every round"
        )
    if length > max(speculation.n_draft, speculation.n_draft_max) or (
        speculation.controller is ControllerName.FIXED and length > speculation.n_draft
    ):
        yield (
            f"the look-up drafts {length} at a time, not {speculation.n_draft}: llama-server "
            f"drafts nothing shorter than the pattern of {speculation.lookup_pattern_min} tokens "
            "that it finds"
        )
