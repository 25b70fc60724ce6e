"""LM Studio's defaults of one model, the JSON that its model list writes.

Keys and value shapes are those of lmstudio-js, commit 6ec11db (`lms-kv-config/src/schema.ts`); LM
Studio ignores a file that starts with a byte order mark.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from engine.configuration import Configuration
from engine.parsing import parse_json
from engine.presets import export, fields
from engine.presets.export import Exported, ExportRequest, Imported, ImportRequest
from engine.presets.fields import FieldRow, Fields

PROGRAM = "LM Studio"
SOURCE = "LM Studio's default settings for a model"
FOLDER = Path(".internal", "user-concrete-model-default-config")
HOMES = (".lmstudio", "lm-studio")
KV_TYPES = ("f32", "f16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_LLAMA, _DRAFT = "llm.load.llama.", "llm.load.llama.speculativeDecoding."
_AUTO_FIT, _SPLIT = f"{_LLAMA}autoFit", "load.gpuSplitConfig"
_BY_MODEL, _BY_HEAD = f"{_DRAFT}draftSimple", f"{_DRAFT}draftMtp"
_DRAFT_MODEL, _DRAFT_MAX = f"{_DRAFT}draftModel", f"{_DRAFT}draftMaxTokens"


def _boxed(field: str, key: str, off: object) -> FieldRow:
    """A value with a checkbox; `off` is the value if it is unchecked or has an unknown type."""

    def write(value: object) -> Fields:
        known = off if isinstance(value, str) and value not in KV_TYPES else value
        return {"checked": known != off, "value": known}

    def read(value: object) -> object:
        if isinstance(value, dict):
            return value["value"] if value.get("checked") else off
        return value  # the bare value that some versions wrote

    return FieldRow(field, key, write, read)


LOAD = (
    FieldRow("n_ctx", "llm.load.contextLength"),
    FieldRow("offload_kqv", "llm.load.offloadKVCacheToGpu"),
    FieldRow("n_batch", f"{_LLAMA}evalBatchSize"),
    FieldRow("n_ubatch", f"{_LLAMA}physicalBatchSize"),
    FieldRow("n_slots", "llm.load.numParallelSessions"),
    FieldRow("kv_unified", "llm.load.useUnifiedKvCache"),
    FieldRow("n_threads", f"{_LLAMA}cpuThreadPoolSize"),
    FieldRow("use_mmap", f"{_LLAMA}tryMmap"),
    FieldRow("flash_attention", f"{_LLAMA}flashAttention", lambda value: value != "off",
        lambda value: "on" if value else "off"),
    _boxed("type_k", f"{_LLAMA}kCacheQuantizationType", "f16"),
    _boxed("type_v", f"{_LLAMA}vCacheQuantizationType", "f16"),
)  # fmt: skip
PREDICTION = (
    FieldRow("sampling.temperature", "llm.prediction.temperature"),
    FieldRow("sampling.top_k", "llm.prediction.topKSampling", read=lambda value: max(value, 0)),
    _boxed("sampling.top_p", "llm.prediction.topPSampling", 1.0),
    _boxed("sampling.min_p", "llm.prediction.minPSampling", 0.0),
    _boxed("sampling.repetition_penalty", "llm.prediction.repeatPenalty", 1.0),
)
LENGTHS = (
    FieldRow("speculation.n_draft", _DRAFT_MAX),
    FieldRow("speculation.draft_min_tokens", f"{_DRAFT}draftMinTokens"),
    FieldRow("speculation.draft_min_confidence", f"{_DRAFT}draftMinContinueProbability"),
)


def _shares(n_layers: int | None) -> tuple[FieldRow, ...]:
    """Numbers of layers, which LM Studio stores as shares of all layers."""
    keys = {
        "n_gpu_layers": f"{_LLAMA}acceleration.offloadRatio",
        "n_cpu_moe": "llm.load.numCpuExpertLayersRatio",
    }
    return tuple(
        FieldRow(name, key, lambda n: _share(n, n_layers), lambda share: _layers(share, n_layers))
        for name, key in keys.items()
    )


def render(request: ExportRequest) -> Exported:
    """The defaults, and their path for a model in LM Studio's own folder."""
    request = export.with_absolute_paths(request)
    configuration, model = request.configuration, request.model
    n_layers = None if model is None else model.architecture.n_blocks
    load: Fields = {
        _AUTO_FIT: False,
        **fields.write_rows((*LOAD, *_shares(n_layers)), configuration),
        _SPLIT: _gpus(configuration),
        **_drafts(configuration),
    }
    defaults: Fields = {
        "preset": "",
        "operation": {"fields": _as_list(fields.write_rows(PREDICTION, configuration))},
        "load": {"fields": _as_list({k: v for k, v in load.items() if v is not None})},
    }
    found = read(ImportRequest(data=defaults, n_layers=n_layers)).preset
    path = install_path_of(configuration.model_path)
    place = (
        f"{configuration.model_path} is not in LM Studio's folder "
        "(~/.lmstudio/models/publisher/model), where LM Studio looks for these defaults: "
        "move the model with `lms import`"
    )
    lost = (*fields.differences(configuration, found, PROGRAM), *([] if path else [place]))
    return Exported(export.json_text(defaults), lost, install_path=path)


def install_path_of(model_path: Path) -> Path | None:
    """Path of a model's defaults; None outside LM Studio's folder of models."""
    inside = _inside_models(model_path)
    if inside is None:
        return None
    home = model_path.parents[len(inside.parts)]
    if (home / "apps" / "bionic" / ".internal").is_dir():
        home = home / "apps" / "bionic"
    return home / FOLDER / inside.with_name(f"{inside.name}.json")


def merge(existing: str, exported: str) -> str:
    """The existing defaults with the exported fields; other fields stay."""
    try:
        old: object = parse_json(existing.removeprefix("\ufeff"))
    except ValueError as error:
        raise export.ExportError(
            f"the existing file is not valid JSON ({error}): move that file away"
        ) from error
    if not isinstance(old, dict):
        raise export.ExportError(
            "the existing file is not from LM Studio, because it contains no JSON object: "
            "move that file away"
        )
    new = json.loads(exported)
    merged: Fields = {**new, **old}
    for part in ("operation", "load"):
        before, both = old.get(part), {**_as_map(old.get(part)), **_as_map(new[part])}
        merged[part] = {**(before if isinstance(before, dict) else {}), "fields": _as_list(both)}
    return export.json_text(merged)


def read(request: ImportRequest) -> Imported:
    """Import LM Studio's defaults of a model; shares of layers need `n_layers`."""
    data = request.data
    given = {**_as_map(data.get("operation")), **_as_map(data.get("load"))}
    rows = (*LOAD, *PREDICTION, *_shares(request.n_layers))
    found: Fields = {"name": PROGRAM, **fields.read_rows(rows, given)}
    split = given.get(_SPLIT)
    if isinstance(split, dict) and split.get("strategy") == "custom":
        found["tensor_split"] = given.pop(_SPLIT).get("customRatio", [])
    found |= _read_drafts(given)
    given.pop(_AUTO_FIT, None)
    return fields.imported(found, SOURCE, fields.listed(given))


def _share(count: int | str, n_layers: int | None) -> float | str | None:
    if count == 0:
        return "off"
    if isinstance(count, str) or (n_layers is not None and count > n_layers):
        return "max"
    return None if n_layers is None else count / n_layers


def _layers(share: object, n_layers: int | None) -> int | str:
    if share in ("max", 1):
        return "all"
    if share in ("off", 0):
        return 0
    if n_layers is None or not isinstance(share, float) or not 0 <= share <= 1:
        raise ValueError
    return round(share * n_layers)


def _gpus(configuration: Configuration) -> Fields | None:
    ratio = list(configuration.tensor_split)
    if configuration.split_mode == "none":
        ratio = [0.0] * configuration.main_gpu + [1.0]
    split = {"strategy": "custom", "disabledGpus": [], "priority": [], "customRatio": ratio}
    return split if ratio else None


def _drafts(configuration: Configuration) -> Fields:
    drafting, draft = fields.drafters(configuration, "head", "draft"), configuration.draft
    if "head" in drafting:
        return {_BY_HEAD: True, _BY_MODEL: False, _DRAFT_MAX: configuration.n_mtp_draft}
    if draft is None or not drafting:
        return {_BY_MODEL: False}
    inside, lengths = _inside_models(draft.model_path), fields.write_rows(LENGTHS, configuration)
    lengths[LENGTHS[1].key] = min(lengths[LENGTHS[1].key], lengths[_DRAFT_MAX])
    path = draft.model_path if inside is None else inside
    return {_BY_MODEL: True, _DRAFT_MODEL: path.as_posix(), **lengths}


def _read_drafts(given: Fields) -> Fields:
    model, by_model = given.pop(_DRAFT_MODEL, None), given.pop(_BY_MODEL, True)
    off: Fields = {"speculation.predictor": "off"}
    if given.pop(_BY_HEAD, False):
        return {**off, "n_mtp_draft": given.pop(_DRAFT_MAX, fields.HEAD_DRAFT)}
    lengths = fields.read_rows(LENGTHS, given)
    if not (model and by_model):
        return off
    return {"draft.model": model, "speculation.predictor": "draft", **lengths}


def _inside_models(path: Path) -> Path | None:
    """A model's path below LM Studio's folder of models."""
    for folder in path.parents:
        if folder.name == "models" and folder.parent.name in HOMES:
            return path.relative_to(folder)
    return None


def _as_map(part: object) -> Fields:
    found = part.get("fields") if isinstance(part, dict) else None
    return {
        str(each["key"]): each.get("value")
        for each in (found if isinstance(found, list) else ())
        if isinstance(each, dict) and "key" in each
    }


def _as_list(values: Mapping[str, object]) -> list[Fields]:
    return [{"key": key, "value": value} for key, value in values.items()]
