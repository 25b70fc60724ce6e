"""LM Studio's defaults of one model, the JSON that its model list writes.

Keys and value shapes are those of lmstudio-js, commit 6ec11db (`lms-kv-config/src/schema.ts`); LM
Studio ignores a file that starts with a byte order mark.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from engine.configuration import Configuration, KVTypeName
from engine.parsing import parse_json
from engine.presets.programs.base import (
    Exported,
    ExportError,
    ExportRequest,
    Format,
    Imported,
    ImportRequest,
    json_text,
    with_absolute_paths,
)
from engine.presets.programs.llama_server_drafts import LLAMA_DRAFT_MAX
from engine.presets.programs.remarks import (
    CONSEQUENCES,
    Drafter,
    differences,
    drafters,
    drafting_remarks,
)
from engine.presets.programs.rules import Data, kv_type, validate_preset

PROGRAM = "LM Studio"
SOURCE = "LM Studio's defaults of a model"
FOLDER = Path(".internal", "user-concrete-model-default-config")
HOMES = (".lmstudio", "lm-studio")
BIONIC = Path("apps", "bionic")
OFFERED: tuple[Drafter, ...] = ("head", "draft")
KV_TYPES = ("f32", "f16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

JsonObject = dict[str, object]

_LOAD = "llm.load."
_LLAMA = "llm.load.llama."
_DRAFT = "llm.load.llama.speculativeDecoding."
_PREDICTION = "llm.prediction."
_AUTO_FIT = f"{_LLAMA}autoFit"
_FLASH = f"{_LLAMA}flashAttention"
_SPLIT = "load.gpuSplitConfig"
_PLAIN: Mapping[str, str] = {
    f"{_LOAD}contextLength": "n_ctx",
    f"{_LOAD}offloadKVCacheToGpu": "offload_kqv",
    f"{_LLAMA}evalBatchSize": "n_batch",
    f"{_LLAMA}physicalBatchSize": "n_ubatch",
    f"{_LOAD}numParallelSessions": "n_slots",
    f"{_LOAD}useUnifiedKvCache": "kv_unified",
    f"{_LLAMA}cpuThreadPoolSize": "n_threads",
    f"{_LLAMA}tryMmap": "use_mmap",
}
"""Fields that are written as a preset has them; none where the value is None."""
_TYPES: Mapping[str, str] = {
    f"{_LLAMA}kCacheQuantizationType": "type_k",
    f"{_LLAMA}vCacheQuantizationType": "type_v",
}
_SHARES: Mapping[str, str] = {
    f"{_LLAMA}acceleration.offloadRatio": "n_gpu_layers",
    f"{_LOAD}numCpuExpertLayersRatio": "n_cpu_moe",
}
"""Numbers of layers, which are shares of all there."""
_SAMPLING: Mapping[str, str] = {
    f"{_PREDICTION}temperature": "temperature",
    f"{_PREDICTION}topKSampling": "top_k",
}
_CHECKED: Mapping[str, tuple[str, float]] = {
    f"{_PREDICTION}topPSampling": ("top_p", 1.0),
    f"{_PREDICTION}minPSampling": ("min_p", 0.0),
    f"{_PREDICTION}repeatPenalty": ("repetition_penalty", 1.0),
}
"""Sampling with a box to check, and what it is where the box is not checked."""
_LENGTHS: Mapping[str, str] = {
    f"{_DRAFT}draftMaxTokens": "n_draft",
    f"{_DRAFT}draftMinTokens": "draft_min_tokens",
    f"{_DRAFT}draftMinContinueProbability": "draft_min_confidence",
}
_BY_MODEL, _BY_HEAD = f"{_DRAFT}draftSimple", f"{_DRAFT}draftMtp"
_DRAFT_MODEL, _DRAFT_MAX = f"{_DRAFT}draftModel", f"{_DRAFT}draftMaxTokens"


def render(request: ExportRequest) -> Exported:
    """The defaults, and where they lie for a model in LM Studio's own folder."""
    placed = with_absolute_paths(request)
    path = placed.configuration.model_path
    install_path = install_path_of(path)
    defaults: JsonObject = {
        "preset": "",
        "operation": {"fields": _as_list(_prediction(placed.configuration))},
        "load": {"fields": _as_list(_load(placed))},
    }
    asked = ImportRequest("", defaults, model=str(path), n_layers=request.n_layers)
    own = {**CONSEQUENCES, "mmproj": "it uses the projector beside the model"}
    differing = differences(placed.configuration, read(asked).preset, PROGRAM, own)
    remarks = (*differing, *_remarks(placed.configuration))
    return Exported(json_text(defaults), remarks, install_path=install_path)


def install_path_of(model_path: Path) -> Path | None:
    """Where LM Studio looks for a model's defaults; None outside its folder of models."""
    inside = _inside_models(model_path)
    if inside is None:
        return None
    home = model_path.parents[len(inside.parts)]
    if (home / BIONIC / ".internal").is_dir():
        home = home / BIONIC
    return home / FOLDER / inside.with_name(f"{inside.name}.json")


def merge(existing: str, exported: str) -> str:
    """The defaults that are there with the exported fields in them; other fields stay.

    Raises:
        ExportError: what is there is not LM Studio's JSON.
    """
    try:
        old: object = parse_json(existing.removeprefix("\ufeff"))
    except ValueError as error:
        raise ExportError(f"the existing file is not valid JSON ({error}): move it") from error
    new: object = json.loads(exported)
    assert isinstance(new, dict)
    if not isinstance(old, dict):
        raise ExportError("the existing file is not LM Studio's (not a JSON object): move it")
    merged: JsonObject = {**new, **old}
    for part in ("operation", "load"):
        kept = old.get(part)
        fields = _as_list({**_as_map(kept), **_as_map(new[part])})
        merged[part] = {**(kept if isinstance(kept, dict) else {}), "fields": fields}
    return json_text(merged)


def is_lm_studio(request: ImportRequest) -> bool:
    """Whether a JSON object has LM Studio's lists of fields."""
    parts = ((request.data or {}).get(part) for part in ("load", "operation"))
    return any(isinstance(part, dict) and "fields" in part for part in parts)


def read(request: ImportRequest) -> Imported:
    """The preset of LM Studio's JSON; shares of layers are listed without `n_layers`.

    Raises:
        ImportedFileError: a value is out of range.
    """
    data = request.data or {}
    fields = {**_as_map(data.get("operation")), **_as_map(data.get("load"))}
    left_out: list[str] = []
    rules = _rules(fields, left_out, request.n_layers)
    if request.model is not None:
        rules["model"] = request.model
    left_out.extend(f"{key} = {json.dumps(value)}" for key, value in fields.items())
    preset = validate_preset({"name": request.name or PROGRAM, **rules}, SOURCE)
    return Imported(preset, SOURCE, tuple(left_out))


# --- from a configuration ---


def _load(request: ExportRequest) -> JsonObject:
    configuration = request.configuration
    values: JsonObject = {
        _AUTO_FIT: False,
        **{key: getattr(configuration, field) for key, field in _PLAIN.items()},
        _FLASH: configuration.flash_attention != "off",
        **{key: _type_field(getattr(configuration, field)) for key, field in _TYPES.items()},
        **{
            key: _share(getattr(configuration, field), request.n_layers)
            for key, field in _SHARES.items()
        },
        _SPLIT: _gpus(configuration),
        **_speculation(configuration),
    }
    return {key: value for key, value in values.items() if value is not None}


def _prediction(configuration: Configuration) -> JsonObject:
    sampling = configuration.sampling
    return {
        **{key: getattr(sampling, field) for key, field in _SAMPLING.items()},
        **{
            key: {"checked": getattr(sampling, field) != off, "value": getattr(sampling, field)}
            for key, (field, off) in _CHECKED.items()
        },
    }


def _type_field(name: KVTypeName) -> JsonObject:
    known = name if name in KV_TYPES else "f16"
    return {"checked": known != "f16", "value": known}


def _share(count: int, n_layers: int | None) -> float | str | None:
    """A number of layers as LM Studio's share: `off`, `max`, or between."""
    if count == 0:
        return "off"
    if count < 0:
        return "max"
    if n_layers is None:
        return None
    return "max" if count > n_layers else count / n_layers


def _gpus(configuration: Configuration) -> JsonObject | None:
    ratio = list(configuration.tensor_split)
    if configuration.split_mode == "none":
        ratio = [0.0] * configuration.main_gpu + [1.0]
    if not ratio:
        return None
    return {"strategy": "custom", "disabledGpus": [], "priority": [], "customRatio": ratio}


def _speculation(configuration: Configuration) -> JsonObject:
    draft, speculation = configuration.draft, configuration.speculation
    if configuration.n_mtp_draft:
        return {_BY_HEAD: True, _BY_MODEL: False, _DRAFT_MAX: configuration.n_mtp_draft}
    if draft is None or "draft" not in drafters(configuration, OFFERED):
        return {_BY_MODEL: False}
    inside = _inside_models(draft.model_path)
    lengths = {key: getattr(speculation, field) for key, field in _LENGTHS.items()}
    return {
        _BY_MODEL: True,
        _DRAFT_MODEL: str(draft.model_path) if inside is None else inside.as_posix(),
        **lengths,
        f"{_DRAFT}draftMinTokens": min(speculation.draft_min_tokens, speculation.n_draft),
    }


def _inside_models(path: Path) -> Path | None:
    """A model's path below LM Studio's folder of models."""
    for folder in path.parents:
        if folder.name == "models" and folder.parent.name in HOMES:
            return path.relative_to(folder)
    return None


def _remarks(configuration: Configuration) -> Iterator[str]:
    path, draft = configuration.model_path, configuration.draft
    if _inside_models(path) is None:
        yield (
            f"{path} is not in LM Studio's folder (~/.lmstudio/models/publisher/model), where "
            "LM Studio looks for these defaults: `lms import` moves it"
        )
    drafting = drafters(configuration, OFFERED)
    n_draft = configuration.speculation.n_draft
    yield from drafting_remarks(configuration, PROGRAM, drafting, n_draft)
    if draft is not None and "draft" in drafting and _inside_models(draft.model_path) is None:
        yield (
            f"the draft model {draft.model_path} is not in LM Studio's folder: LM Studio may "
            "not find it"
        )


# --- to rules ---


def _rules(fields: JsonObject, left_out: list[str], n_layers: int | None) -> Data:
    """The rules that fields come to; those fields are taken away."""
    rules: Data = {field: fields.pop(key) for key, field in _PLAIN.items() if key in fields}
    for key, field in _TYPES.items():
        if key in fields:
            rules[field] = kv_type(_type_name(fields.pop(key)), key, left_out)
    if _FLASH in fields:
        rules["flash_attention"] = "on" if fields.pop(_FLASH) else "off"
    for key, field in _SHARES.items():
        count = _layers(fields.get(key), n_layers)
        if count is not None:
            rules[field] = count
            del fields[key]
    split = fields.get(_SPLIT)
    if isinstance(split, dict) and split.get("strategy") == "custom":
        rules["tensor_split"] = split.get("customRatio", [])
        del fields[_SPLIT]
    rules["sampling"] = _read_sampling(fields)
    rules.update(_read_speculation(fields))
    for key in (_AUTO_FIT, _BY_MODEL):
        fields.pop(key, None)
    return rules


def _type_name(value: object) -> str | None:
    """Read `{checked, value}`, or the bare name that some versions wrote."""
    if isinstance(value, dict):
        return str(value.get("value")) if value.get("checked") else None
    return value if isinstance(value, str) else None


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


def _read_sampling(fields: JsonObject) -> Data:
    sampling: Data = {}
    offs = {**{key: (field, 0.0) for key, field in _SAMPLING.items()}, **_CHECKED}
    for key, (field, off) in offs.items():
        if key not in fields:
            continue
        value = fields.pop(key)
        if isinstance(value, dict):
            value = value.get("value") if value.get("checked") else off
        sampling[field] = max(value, 0) if isinstance(value, int | float) else off
    return sampling


def _read_speculation(fields: JsonObject) -> Data:
    model = fields.pop(_DRAFT_MODEL, "")
    if fields.pop(_BY_HEAD, False):
        n_draft = fields.pop(_DRAFT_MAX, LLAMA_DRAFT_MAX)
        return {"n_mtp_draft": n_draft, "speculation": {"predictor": "off"}}
    lengths = {field: fields.pop(key) for key, field in _LENGTHS.items() if key in fields}
    if not model or not fields.get(_BY_MODEL, True):
        return {"speculation": {"predictor": "off"}}
    return {"draft": {"model": model}, "speculation": {"predictor": "draft", **lengths}}


# --- the file ---


def _as_map(part: object) -> JsonObject:
    fields = part.get("fields") if isinstance(part, dict) else None
    return {
        str(each["key"]): each.get("value")
        for each in (fields if isinstance(fields, list) else ())
        if isinstance(each, dict) and "key" in each
    }


def _as_list(values: JsonObject) -> list[JsonObject]:
    return [{"key": key, "value": value} for key, value in values.items()]


FORMAT = Format(
    "lm-studio",
    "LM Studio defaults of the model, JSON",
    lambda request: f"{request.configuration.model_path.name}.json",  # it looks for that name
    render,
    has_comments=False,
    merge=merge,
    recognises=is_lm_studio,
    read=read,
)
