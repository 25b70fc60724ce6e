"""Speculation of a llama-server as rules of a preset."""

from engine.configuration import MAX_DRAFT, SpeculationSettings
from engine.presets.importing.reading import Data, Reading, finite, kv_type, layers, whole

Stages = dict[str, dict[str, str]]

USUAL = SpeculationSettings()
LLAMA_DRAFT_MAX = 3
LLAMA_P_MIN = "0"
LEGACY_DRAFT_MAX = 16
LEGACY_P_MIN = "0.75"
LLAMA_LOOKUP = (12, 48)
"""Pattern and length of `ngram-simple` where they are not given (llama.cpp `common.h`)."""
LONGEST_PATTERN = 64
CURRENT_DRAFT_TYPES = frozenset({"draft-simple"})
DRAFT_TYPES = CURRENT_DRAFT_TYPES | {"draft"}
HEAD_TYPES = frozenset({"mtp", "draft-mtp"})
LOOKUP_TYPES = frozenset({"ngram-simple"})


def read_speculation(reading: Reading) -> None:
    """Put the predictor, its lengths, the draft model and the model's own head into the preset."""
    stages = _stages(reading)
    draft_model = reading.text("draft_model")
    is_untyped = not stages and draft_model is not None
    if is_untyped:
        stages = {"draft-simple": {}}
    reading.data["speculation"] = _predictor(reading, stages)
    if draft_model is None:
        return
    reading.data["draft"] = {
        "model": draft_model,
        "n_gpu_layers": layers(reading, "draft_layers", "all"),
        "type_k": kv_type(reading.text("draft_type_k"), "draft K", reading.left_out),
        "type_v": kv_type(reading.text("draft_type_v"), "draft V", reading.left_out),
    }
    if is_untyped and not reading.given.is_legacy:
        reading.notes.append(
            "a draft model without --spec-type does nothing in builds from May 2026 on: the preset "
            "drafts with it"
        )


def _predictor(reading: Reading, stages: Stages) -> Data:
    """Give the rules of the first predictor that kvchat has; others are listed.

    Look-up with a draft model behind it is `combined`, whichever is written first: llama.cpp
    0c1e57098 asks the look-up first.
    """
    rules: Data | None = None
    are_combined = set(stages) >= LOOKUP_TYPES | CURRENT_DRAFT_TYPES
    for kind, stage in stages.items():
        if kind in HEAD_TYPES:
            length = _count(reading, "draft_max", stage.get("n_max"), LLAMA_DRAFT_MAX)
            reading.data["n_mtp_draft"] = _limited(length, reading)
        elif are_combined and kind in LOOKUP_TYPES | CURRENT_DRAFT_TYPES:
            continue
        elif kind in LOOKUP_TYPES and rules is None:
            rules = _lookup(reading, stage)
        elif kind in DRAFT_TYPES and rules is None:
            rules = _draft(reading, stage)
        elif kind != "none":
            reading.left_out.append(f"--spec-type {kind}")
    if are_combined:
        rules = _combined(_lookup(reading, {}), _draft(reading, {}))
    return {"predictor": "off"} if rules is None else rules


def _combined(lookup: Data, draft: Data) -> Data:
    lengths = [rules[name] for rules in (lookup, draft) for name in ("n_draft", "n_draft_max")]
    return {
        **draft,
        **lookup,
        "predictor": "combined",
        "n_draft": draft["n_draft"],
        "n_draft_max": max(length for length in lengths if isinstance(length, int)),
    }


def _stages(reading: Reading) -> Stages:
    """Give each type with what ik_llama.cpp writes behind it: `draft:n_max=3,p_min=0.5`."""
    written = reading.text("spec_type") or ""
    parts = written.split(";" if ":" in written else ",")
    stages: Stages = {}
    for part in filter(None, parts):
        name, _, values = part.partition(":")
        pairs = (value.partition("=") for value in values.split(",") if value)
        stages[name.replace("_", "-")] = {key: value for key, _, value in pairs}
    return stages


def _lookup(reading: Reading, stage: dict[str, str]) -> Data:
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


def _draft(reading: Reading, stage: dict[str, str]) -> Data:
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
