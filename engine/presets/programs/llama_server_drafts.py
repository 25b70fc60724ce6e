"""Speculation of a llama-server: in its words, and out of them."""

from collections.abc import Iterator

from engine.configuration import (
    DRAFT_N_CTX,
    MAX_DRAFT,
    Configuration,
    ControllerName,
    DraftConfiguration,
    SpeculationSettings,
)
from engine.model.architecture import Model
from engine.presets.programs.base import number
from engine.presets.programs.flags import layers_word, option
from engine.presets.programs.remarks import drafters, drafting_remarks
from engine.presets.programs.rules import Data, Reading, finite, kv_type

USUAL = SpeculationSettings()
LLAMA_DRAFT_MAX = 3
LLAMA_P_MIN = "0"
LLAMA_LOOKUP = (12, 48)
"""Pattern and length of `ngram-simple` where they are not given (llama.cpp `common.h`)."""
LONGEST_PATTERN = 64
LOOKUP, DRAFT, HEAD = "ngram-simple", "draft-simple", "draft-mtp"
"""Types of `--spec-type`."""

Pair = tuple[str, str]


def draft_words(configuration: Configuration) -> list[str]:
    """Today's arguments that make llama-server draft as the configuration says, if it can."""
    return [word for key, value in draft_pairs(configuration) for word in option(key, value).words]


def draft_pairs(configuration: Configuration) -> Iterator[Pair]:
    """The settings that make llama-server draft as the configuration says, if it can.

    Today's server takes its types in one list, so they are joined; the model's own head and a draft
    model share one length there, so the head drafts alone where both are asked for.
    """
    pairs = list(_predictor_pairs(configuration))
    types = [value for key, value in pairs if key == "spec_type"]
    if len(types) > 1:
        yield "spec_type", ",".join(types)
        pairs = [pair for pair in pairs if pair[0] != "spec_type"]
    yield from pairs


def draft_remarks(configuration: Configuration, model: Model | None) -> Iterator[str]:
    """What llama-server does otherwise than kvchat when it drafts."""
    speculation, draft = configuration.speculation, configuration.draft
    drafting, length = drafters(configuration), speculation.n_draft_of_server
    yield from drafting_remarks(configuration, "llama-server", drafting, length)
    if "head" in drafting and model is not None and not model.architecture.head_layers:
        yield (
            f"n_mtp_draft is {configuration.n_mtp_draft}: the model has no MTP head, and "
            "llama-server does not start with that setting; set it to 0"
        )
    if draft is not None and "draft" in drafting and draft.n_ctx != _draft_n_ctx(configuration):
        yield (
            f"the draft's n_ctx is {draft.n_ctx}: llama-server gives it the context "
            f"of its target, {configuration.n_ctx}"
        )
    if "lookup" in drafting and length > _planned_length(speculation):
        yield (
            f"the n-gram lookup drafts {length} tokens, not {speculation.n_draft}: llama-server "
            f"drafts at least as many as the {speculation.lookup_pattern_min} tokens of its pattern"
        )


def read_drafts(reading: Reading) -> None:
    """Put the predictor, its lengths, the draft model and the model's own head into the preset."""
    written = (reading.text("spec_type") or "").split(",")
    types = [each.replace("_", "-") for each in written if each]
    draft_model = reading.text("draft_model")
    is_untyped = not types and draft_model is not None
    reading.data["speculation"] = _predictor_rules(reading, [DRAFT] if is_untyped else types)
    if draft_model is None:
        return
    reading.data["draft"] = {
        "model": draft_model,
        "n_gpu_layers": reading.layers("draft_layers", "all"),
        "type_k": kv_type(reading.text("draft_type_k"), "draft K", reading.left_out),
        "type_v": kv_type(reading.text("draft_type_v"), "draft V", reading.left_out),
    }
    if is_untyped:
        reading.notes.append(
            "a draft model without --spec-type does nothing in builds from May 2026 on: the preset "
            "drafts with it"
        )


# --- from a configuration to pairs ---


def _draft_n_ctx(configuration: Configuration) -> int:
    return min(configuration.n_ctx, DRAFT_N_CTX)


def _planned_length(speculation: SpeculationSettings) -> int:
    """The longest draft that is planned."""
    is_fixed = speculation.controller is ControllerName.FIXED
    return speculation.n_draft if is_fixed else max(speculation.n_draft, speculation.n_draft_max)


def _predictor_pairs(configuration: Configuration) -> Iterator[Pair]:
    drafting, speculation = drafters(configuration), configuration.speculation
    if "head" in drafting:
        yield "spec_type", HEAD
        yield "draft_max", str(configuration.n_mtp_draft)
    if "lookup" in drafting:
        yield "spec_type", LOOKUP
        yield "lookup_n", str(speculation.lookup_pattern_min)
        yield "lookup_m", str(speculation.n_draft_of_server)
    if "draft" in drafting and configuration.draft is not None:
        yield from _draft(configuration.draft, speculation)


def _draft(draft: DraftConfiguration, speculation: SpeculationSettings) -> Iterator[Pair]:
    yield "spec_type", DRAFT
    yield "draft_model", str(draft.model_path)
    yield "draft_max", str(speculation.n_draft)
    yield "draft_min", str(min(speculation.draft_min_tokens, speculation.n_draft))
    yield "draft_p_min", number(speculation.draft_min_confidence)
    yield "draft_layers", layers_word(draft.n_gpu_layers)
    yield "draft_type_k", draft.type_k
    yield "draft_type_v", draft.type_v


# --- from what was given to rules ---


def _predictor_rules(reading: Reading, types: list[str]) -> Data:
    """The rules of the first predictor that kvchat has; others are listed.

    Look-up with a draft model behind it is `combined`, whichever is written first: llama.cpp
    0c1e57098 asks the look-up first.
    """
    rules: Data | None = None
    are_combined = LOOKUP in types and DRAFT in types
    for kind in types:
        if kind == HEAD:
            length = _count(reading, "draft_max", LLAMA_DRAFT_MAX)
            reading.data["n_mtp_draft"] = _limited(length, reading)
        elif are_combined and kind in (LOOKUP, DRAFT):
            continue
        elif kind == LOOKUP and rules is None:
            rules = _lookup_rules(reading)
        elif kind == DRAFT and rules is None:
            rules = _draft_rules(reading)
        elif kind != "none":
            reading.left_out.append(f"--spec-type {kind}")
    if are_combined:
        rules = _combined_rules(_lookup_rules(reading), _draft_rules(reading))
    return {"predictor": "off"} if rules is None else rules


def _combined_rules(lookup: Data, draft: Data) -> Data:
    lengths = [rules[name] for rules in (lookup, draft) for name in ("n_draft", "n_draft_max")]
    return {
        **draft,
        **lookup,
        "predictor": "combined",
        "n_draft": draft["n_draft"],
        "n_draft_max": max(length for length in lengths if isinstance(length, int)),
    }


def _lookup_rules(reading: Reading) -> Data:
    wanted = _count(reading, "lookup_n", LLAMA_LOOKUP[0])
    pattern = max(1, min(wanted, LONGEST_PATTERN))
    if pattern != wanted:
        reading.notes.append(f"an n-gram pattern of length {wanted} becomes {pattern}")
    length = _count(reading, "lookup_m", LLAMA_LOOKUP[1])
    n_draft_max = _limited(length, reading)
    return {
        "predictor": "lookup",
        "lookup_pattern_min": pattern,
        "lookup_pattern_max": max(pattern, USUAL.lookup_pattern_max),
        "n_draft": min(USUAL.n_draft, n_draft_max),
        "n_draft_max": n_draft_max,
    }


def _draft_rules(reading: Reading) -> Data:
    n_draft = _limited(_count(reading, "draft_max", LLAMA_DRAFT_MAX), reading)
    least = _count(reading, "draft_min", 0)
    rules: Data = {
        "predictor": "draft",
        "n_draft": n_draft,
        "n_draft_max": max(n_draft, USUAL.n_draft_max),
        "draft_min_tokens": min(least, n_draft),
    }
    confidence = reading.text("draft_p_min") or LLAMA_P_MIN
    share = finite(confidence)
    if share is None:
        reading.left_out.append(f"--spec-draft-p-min {confidence} (not a number)")
    else:
        rules["draft_min_confidence"] = share
    return rules


def _count(reading: Reading, key: str, default: int) -> int:
    count = reading.count(key)
    return default if count is None else count


def _limited(length: int, reading: Reading) -> int:
    if length > MAX_DRAFT:
        reading.notes.append(f"drafts of {length} tokens become {MAX_DRAFT}, the most kvchat takes")
    return max(1, min(length, MAX_DRAFT))
