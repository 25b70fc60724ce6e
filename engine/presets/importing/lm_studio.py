"""LM Studio's defaults of a model as a preset (keys of lmstudio-js, commit 6ec11db)."""

import json
from collections.abc import Mapping

from engine.presets.importing.imported import Imported
from engine.presets.importing.reading import Data, kv_type
from engine.presets.importing.rules import validated
from engine.presets.importing.speculation import LLAMA_DRAFT_MAX

LOAD, LLAMA = "llm.load.", "llm.load.llama."
DRAFT = "llm.load.llama.speculativeDecoding."
PREDICTION = "llm.prediction."

Fields = dict[str, object]

_PLAIN: Mapping[str, str] = {
    f"{LOAD}contextLength": "n_ctx",
    f"{LLAMA}evalBatchSize": "n_batch",
    f"{LLAMA}physicalBatchSize": "n_ubatch",
    f"{LOAD}numParallelSessions": "n_slots",
    f"{LOAD}useUnifiedKvCache": "kv_unified",
    f"{LOAD}offloadKVCacheToGpu": "offload_kqv",
    f"{LLAMA}cpuThreadPoolSize": "n_threads",
}
_SAMPLING: Mapping[str, tuple[str, float]] = {
    f"{PREDICTION}temperature": ("temperature", 0.0),
    f"{PREDICTION}topKSampling": ("top_k", 0),
    f"{PREDICTION}topPSampling": ("top_p", 1.0),
    f"{PREDICTION}minPSampling": ("min_p", 0.0),
    f"{PREDICTION}repeatPenalty": ("repetition_penalty", 1.0),
}
"""Field, its name in a preset, and what it is when its box is not checked."""
_NO_NEWS = frozenset({f"{LLAMA}autoFit", f"{DRAFT}draftSimple"})


def looks_like_lm_studio(data: Mapping[str, object]) -> bool:
    """Whether a JSON object has LM Studio's lists of fields."""
    parts = (data.get(part) for part in ("load", "operation"))
    return any(isinstance(part, dict) and "fields" in part for part in parts)


def read_lm_studio(
    data: Mapping[str, object],
    name: str | None,
    *,
    model: str | None = None,
    n_layers: int | None = None,
) -> Imported:
    """Give the preset of LM Studio's JSON; shares of layers are listed without `n_layers`.

    Raises:
        ImportedFileError: a value is out of range.
    """
    fields = {**_fields(data.get("operation")), **_fields(data.get("load"))}
    left_out: list[str] = []
    rules: Data = {"name": name or "LM Studio", **_rules(fields, left_out, n_layers)}
    if model is not None:
        rules["model"] = model
    left_out.extend(f"{key} = {json.dumps(value)}" for key, value in fields.items())
    source = "LM Studio's defaults of a model"
    return Imported(validated(rules, source), source, tuple(left_out))


def _rules(fields: Fields, left_out: list[str], n_layers: int | None) -> Data:
    """Give the rules that fields come to, and take those fields away."""
    rules: Data = {}
    for key, rule in _PLAIN.items():
        if key in fields:
            rules[rule] = fields.pop(key)
    for side in ("k", "v"):
        key = f"{LLAMA}{side}CacheQuantizationType"
        if key in fields:
            rules[f"type_{side}"] = kv_type(_type_name(fields.pop(key)), key, left_out)
    if f"{LLAMA}flashAttention" in fields:
        is_on = bool(fields.pop(f"{LLAMA}flashAttention"))
        rules["flash_attention"] = "on" if is_on else "off"
    rules.update(_placement(fields, n_layers))
    rules["sampling"] = _sampling(fields)
    rules.update(_speculation(fields))
    for key in _NO_NEWS:
        fields.pop(key, None)
    return rules


def _fields(part: object) -> Fields:
    listed = part.get("fields") if isinstance(part, dict) else None
    if not isinstance(listed, list):
        return {}
    return {
        str(each["key"]): each.get("value")
        for each in listed
        if isinstance(each, dict) and "key" in each
    }


def _type_name(value: object) -> str | None:
    """Read `{checked, value}`, or the bare name that some versions wrote."""
    if isinstance(value, dict):
        return str(value.get("value")) if value.get("checked") else None
    return value if isinstance(value, str) else None


def _placement(fields: Fields, n_layers: int | None) -> Data:
    rules: Data = {}
    for key, rule in (
        (f"{LLAMA}acceleration.offloadRatio", "n_gpu_layers"),
        (f"{LOAD}numCpuExpertLayersRatio", "n_cpu_moe"),
    ):
        count = _layers(fields.get(key), n_layers)
        if count is not None:
            rules[rule] = count
            del fields[key]
    split = fields.get("load.gpuSplitConfig")
    if isinstance(split, dict) and split.get("strategy") == "custom":
        rules["tensor_split"] = split.get("customRatio", [])
        del fields["load.gpuSplitConfig"]
    return rules


def _layers(share: object, n_layers: int | None) -> int | str | None:
    match share:
        case "max" | 1:
            return "all"
        case "off" | 0:
            return 0
        case float() if n_layers is not None and 0 <= share <= 1:
            return round(share * n_layers)
        case _:
            return None


def _sampling(fields: Fields) -> Data:
    sampling: Data = {}
    for key, (rule, off) in _SAMPLING.items():
        if key not in fields:
            continue
        value = fields.pop(key)
        if isinstance(value, dict):
            value = value.get("value") if value.get("checked") else off
        sampling[rule] = max(value, 0) if isinstance(value, int | float) else off
    return sampling


def _speculation(fields: Fields) -> Data:
    model = fields.pop(f"{DRAFT}draftModel", "")
    if fields.pop(f"{DRAFT}draftMtp", False):
        n_draft = fields.pop(f"{DRAFT}draftMaxTokens", LLAMA_DRAFT_MAX)
        return {"n_mtp_draft": n_draft, "speculation": {"predictor": "off"}}
    lengths = {
        rule: fields.pop(f"{DRAFT}{key}")
        for key, rule in (
            ("draftMaxTokens", "n_draft"),
            ("draftMinTokens", "draft_min_tokens"),
            ("draftMinContinueProbability", "draft_min_confidence"),
        )
        if f"{DRAFT}{key}" in fields
    }
    if not model or not fields.get(f"{DRAFT}draftSimple", True):
        return {"speculation": {"predictor": "off"}}
    return {"draft": {"model": model}, "speculation": {"predictor": "draft", **lengths}}
