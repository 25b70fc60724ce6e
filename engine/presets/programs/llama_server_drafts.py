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
from engine.presets.programs.flags import CURRENT, FlagSet
from engine.presets.programs.remarks import Drafter, drafters, drafting_remarks
from engine.presets.programs.rules import Data, Reading, finite, kv_type, whole

USUAL = SpeculationSettings()
LLAMA_DRAFT_MAX = 3
LLAMA_P_MIN = "0"
LEGACY_DRAFT_MAX = 16
LEGACY_P_MIN = "0.75"
LLAMA_LOOKUP = (12, 48)
"""Pattern and length of `ngram-simple` where they are not given (llama.cpp `common.h`)."""
LONGEST_PATTERN = 64
LOOKUP, DRAFT, HEAD = "ngram-simple", "draft-simple", "draft-mtp"
"""Types of today's `--spec-type`; ik_llama.cpp says `draft` and `mtp` for the last two."""
DRAFT_TYPES, HEAD_TYPES = (DRAFT, "draft"), (HEAD, "mtp")

Pair = tuple[str, str]
Stages = dict[str, dict[str, str]]


def draft_words(configuration: Configuration) -> list[str]:
    """Today's arguments that make llama-server draft as the configuration says, if it can."""
    return [
        word
        for key, value in draft_pairs(configuration, CURRENT)
        for word in CURRENT.option(key, value).words
    ]


def draft_pairs(configuration: Configuration, flags: FlagSet) -> Iterator[Pair]:
    """The settings that make llama-server draft as the configuration says, if it can.

    Today's server takes its types in one list, so they are joined; the model's own head and a draft
    model share one length there, so the head drafts alone where both are asked for.
    """
    pairs = list(_predictor_pairs(configuration, flags))
    types = [value for key, value in pairs if key == "spec_type"]
    if flags.name == "current" and len(types) > 1:
        yield "spec_type", ",".join(types)
        pairs = [pair for pair in pairs if pair[0] != "spec_type"]
    yield from pairs


def draft_remarks(
    configuration: Configuration, model: Model | None, flags: FlagSet
) -> Iterator[str]:
    """What llama-server does otherwise than kvchat when it drafts."""
    speculation, draft = configuration.speculation, configuration.draft
    drafting, length = _drafting(configuration, flags), speculation.n_draft_of_server
    yield from drafting_remarks(configuration, "llama-server", drafting, length)
    if "head" in drafting and model is not None and not model.architecture.head_layers:
        yield (
            f"n_mtp_draft is {configuration.n_mtp_draft}: the model has no next-token head, and "
            "llama-server ends where it is asked for one; set it to 0"
        )
    if draft is not None and "draft" in drafting and draft.n_ctx != _draft_n_ctx(configuration):
        yield (
            f"the draft's n_ctx is {draft.n_ctx}: llama-server gives it a context as long "
            f"as its target's, {configuration.n_ctx}"
        )
    if "lookup" in drafting and length > _planned_length(speculation):
        yield (
            f"the look-up drafts {length} at a time, not {speculation.n_draft}: llama-server "
            f"drafts nothing shorter than the pattern of {speculation.lookup_pattern_min} tokens "
            "that it finds"
        )


def read_drafts(reading: Reading) -> None:
    """Put the predictor, its lengths, the draft model and the model's own head into the preset."""
    stages = _stages(reading)
    draft_model = reading.text("draft_model")
    is_untyped = not stages and draft_model is not None
    if is_untyped:
        stages = {DRAFT: {}}
    reading.data["speculation"] = _predictor_rules(reading, stages)
    if draft_model is None:
        return
    reading.data["draft"] = {
        "model": draft_model,
        "n_gpu_layers": reading.layers("draft_layers", "all"),
        "type_k": kv_type(reading.text("draft_type_k"), "draft K", reading.left_out),
        "type_v": kv_type(reading.text("draft_type_v"), "draft V", reading.left_out),
    }
    if is_untyped and not reading.given.is_legacy:
        reading.notes.append(
            "a draft model without --spec-type does nothing in builds from May 2026 on: the preset "
            "drafts with it"
        )


# --- from a configuration to pairs ---


def _drafting(configuration: Configuration, flags: FlagSet) -> tuple[Drafter, ...]:
    """What drafts: a draft model behind the look-up does so in llama.cpp only.

    As `combined` does here; llama.cpp 0c1e57098 takes the first draft that is not empty, look-up
    before draft model (`common/speculative.cpp`).
    """
    found = drafters(configuration)
    return (
        found
        if flags.name == "current" or "lookup" not in found
        else tuple(each for each in found if each != "draft")
    )


def _draft_n_ctx(configuration: Configuration) -> int:
    return min(configuration.n_ctx, DRAFT_N_CTX)


def _planned_length(speculation: SpeculationSettings) -> int:
    """The longest draft that is planned."""
    is_fixed = speculation.controller is ControllerName.FIXED
    return speculation.n_draft if is_fixed else max(speculation.n_draft, speculation.n_draft_max)


def _predictor_pairs(configuration: Configuration, flags: FlagSet) -> Iterator[Pair]:
    drafting, speculation = _drafting(configuration, flags), configuration.speculation
    if "head" in drafting:
        yield from _head(configuration.n_mtp_draft, flags)
    if "lookup" in drafting:
        yield from _lookup(speculation, flags)
    if "draft" in drafting and configuration.draft is not None:
        yield from _draft(configuration.draft, speculation, flags)


def _head(n_draft: int, flags: FlagSet) -> Iterator[Pair]:
    if flags.name == "ik":
        yield "spec_type", f"mtp:n_max={n_draft},p_min=0"
    else:
        yield "spec_type", HEAD
        yield "draft_max", str(n_draft)


def _lookup(speculation: SpeculationSettings, flags: FlagSet) -> Iterator[Pair]:
    pattern, length = str(speculation.lookup_pattern_min), str(speculation.n_draft_of_server)
    if flags.name == "ik":
        sizes = f"n_max={length},ngram_size_n={pattern},ngram_size_m={length}"
        yield "spec_type", f"{LOOKUP}:{sizes}"
        return
    yield "spec_type", LOOKUP
    yield "lookup_n", pattern
    yield "lookup_m", length


def _draft(
    draft: DraftConfiguration, speculation: SpeculationSettings, flags: FlagSet
) -> Iterator[Pair]:
    n_max = str(speculation.n_draft)
    n_min = str(min(speculation.draft_min_tokens, speculation.n_draft))
    p_min = number(speculation.draft_min_confidence)
    if flags.name == "current":
        yield "spec_type", DRAFT
    yield "draft_model", str(draft.model_path)
    if flags.name == "ik":
        yield "spec_type", f"draft:n_max={n_max},n_min={n_min},p_min={p_min}"
    else:
        yield "draft_max", n_max
        yield "draft_min", n_min
        yield "draft_p_min", p_min
    yield "draft_layers", flags.layers(draft.n_gpu_layers)
    yield "draft_type_k", draft.type_k
    yield "draft_type_v", draft.type_v


# --- from what was given to rules ---


def _predictor_rules(reading: Reading, stages: Stages) -> Data:
    """The rules of the first predictor that kvchat has; others are listed.

    Look-up with a draft model behind it is `combined`, whichever is written first: llama.cpp
    0c1e57098 asks the look-up first.
    """
    rules: Data | None = None
    are_combined = LOOKUP in stages and DRAFT in stages
    for kind, stage in stages.items():
        if kind in HEAD_TYPES:
            length = _count(reading, "draft_max", stage.get("n_max"), LLAMA_DRAFT_MAX)
            reading.data["n_mtp_draft"] = _limited(length, reading)
        elif are_combined and kind in (LOOKUP, DRAFT):
            continue
        elif kind == LOOKUP and rules is None:
            rules = _lookup_rules(reading, stage)
        elif kind in DRAFT_TYPES and rules is None:
            rules = _draft_rules(reading, stage)
        elif kind != "none":
            reading.left_out.append(f"--spec-type {kind}")
    if are_combined:
        rules = _combined_rules(_lookup_rules(reading, {}), _draft_rules(reading, {}))
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


def _stages(reading: Reading) -> Stages:
    """Each type with what ik_llama.cpp writes behind it: `draft:n_max=3,p_min=0.5`."""
    written = reading.text("spec_type") or ""
    parts = written.split(";" if ":" in written else ",")
    stages: Stages = {}
    for part in filter(None, parts):
        name, _, values = part.partition(":")
        pairs = (value.partition("=") for value in values.split(",") if value)
        stages[name.replace("_", "-")] = {key: value for key, _, value in pairs}
    return stages


def _lookup_rules(reading: Reading, stage: dict[str, str]) -> Data:
    wanted = _count(reading, "lookup_n", stage.get("ngram_size_n"), LLAMA_LOOKUP[0])
    pattern = max(1, min(wanted, LONGEST_PATTERN))
    if pattern != wanted:
        reading.notes.append(f"a look-up pattern of length {wanted} becomes {pattern}")
    length = _count(reading, "lookup_m", stage.get("ngram_size_m"), LLAMA_LOOKUP[1])
    n_draft_max = _limited(length, reading)
    return {
        "predictor": "lookup",
        "lookup_pattern_min": pattern,
        "lookup_pattern_max": max(pattern, USUAL.lookup_pattern_max),
        "n_draft": min(USUAL.n_draft, n_draft_max),
        "n_draft_max": n_draft_max,
    }


def _draft_rules(reading: Reading, stage: dict[str, str]) -> Data:
    usual = LEGACY_DRAFT_MAX if reading.given.is_legacy else LLAMA_DRAFT_MAX
    n_draft = _limited(_count(reading, "draft_max", stage.get("n_max"), usual), reading)
    least = _count(reading, "draft_min", stage.get("n_min"), 0)
    rules: Data = {
        "predictor": "draft",
        "n_draft": n_draft,
        "n_draft_max": max(n_draft, USUAL.n_draft_max),
        "draft_min_tokens": min(least, n_draft),
    }
    usual_p = LEGACY_P_MIN if reading.given.is_legacy else LLAMA_P_MIN
    confidence = stage.get("p_min") or reading.text("draft_p_min") or usual_p
    share = finite(confidence)
    if share is None:
        reading.left_out.append(f"--spec-draft-p-min {confidence} (not a number)")
    else:
        rules["draft_min_confidence"] = share
    return rules


def _count(reading: Reading, key: str, in_stage: str | None, default: int) -> int:
    count = None if in_stage is None else whole(in_stage)
    if count is None or count < 0:
        count = reading.count(key)
    return default if count is None else count


def _limited(length: int, reading: Reading) -> int:
    if length > MAX_DRAFT:
        reading.notes.append(f"drafts of {length} tokens become {MAX_DRAFT}, the most kvchat takes")
    return max(1, min(length, MAX_DRAFT))
