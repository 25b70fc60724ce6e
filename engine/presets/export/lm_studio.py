"""LM Studio's defaults of one model, the JSON that its model list writes.

Keys and value shapes are those of lmstudio-js, commit 6ec11db (`lms-kv-config/src/schema.ts`); LM
Studio ignores a file that starts with a byte order mark.
"""

import json
from pathlib import Path

from engine.parsing import parse_json
from engine.presets.export import lm_studio_fields as fields
from engine.presets.export.request import (
    Exported,
    ExportError,
    ExportRequest,
    with_absolute_paths,
)

FOLDER = Path(".internal", "user-concrete-model-default-config")
HOMES = (".lmstudio", "lm-studio")
BIONIC = Path("apps", "bionic")

JsonObject = dict[str, object]


def file_name(request: ExportRequest) -> str:
    """Give the name that LM Studio looks for: that of the model's file, and `.json`."""
    return f"{request.configuration.model_path.name}.json"


def render(request: ExportRequest) -> Exported:
    """Give the defaults, and where they lie for a model in LM Studio's own folder."""
    placed = with_absolute_paths(request)
    path = placed.configuration.model_path
    install_path = install_path_of(path)
    remarks = tuple(fields.remarks(request))
    if install_path is None:
        remarks = (
            *remarks,
            f"{path} does not lie in LM Studio's folder (~/.lmstudio/models/publisher/model): it "
            "looks for these defaults by the model's place there, `lms import` moves it",
        )
    defaults: JsonObject = {
        "preset": "",
        "operation": {"fields": _as_list(fields.prediction(placed))},
        "load": {"fields": _as_list(fields.load(placed))},
    }
    return Exported(_dumped(defaults), remarks, install_path=install_path)


def install_path_of(model_path: Path) -> Path | None:
    """Give where LM Studio looks for a model's defaults; None outside its folder of models."""
    for folder in model_path.parents:
        if folder.name != "models" or folder.parent.name not in HOMES:
            continue
        inside = model_path.relative_to(folder)
        home = folder.parent
        if (home / BIONIC / ".internal").is_dir():
            home = home / BIONIC
        return home / FOLDER / inside.with_name(f"{inside.name}.json")
    return None


def merge(existing: str, exported: str) -> str:
    """Give the defaults that are there with the exported fields in them; other fields stay.

    Raises:
        ExportError: what is there is not LM Studio's JSON.
    """
    try:
        old: object = parse_json(existing.removeprefix("\ufeff"))
    except ValueError as error:
        raise ExportError(f"the file that is there is not valid JSON ({error}): move it") from error
    new: object = json.loads(exported)
    assert isinstance(new, dict)
    if not isinstance(old, dict):
        raise ExportError("the file that is there is not LM Studio's: it holds no object. Move it")
    merged: JsonObject = {**new, **old}
    for part in ("operation", "load"):
        merged[part] = _with_fields(old.get(part), new[part])
    return _dumped(merged)


def _with_fields(old: object, new: object) -> JsonObject:
    kept = old if isinstance(old, dict) else {}
    values = {
        **_as_map(kept.get("fields")),
        **_as_map(new.get("fields") if isinstance(new, dict) else None),
    }
    return {**kept, "fields": _as_list(values)}


def _as_map(listed: object) -> dict[str, object]:
    if not isinstance(listed, list):
        return {}
    return {
        str(each["key"]): each.get("value")
        for each in listed
        if isinstance(each, dict) and "key" in each
    }


def _as_list(values: dict[str, object]) -> list[JsonObject]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _dumped(parts: JsonObject) -> str:
    """Give JSON with a line for each field."""
    lines = ",\n".join(f"  {_json(name)}: {_part(part)}" for name, part in parts.items())
    return f"{{\n{lines}\n}}\n"


def _part(part: object) -> str:
    listed = part.get("fields") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(listed, list) or not listed:
        return _json(part)
    others = "".join(
        f"    {_json(name)}: {_json(value)},\n" for name, value in part.items() if name != "fields"
    )
    fields = ",\n".join(f"      {_json(each)}" for each in listed)
    return f'{{\n{others}    "fields": [\n{fields}\n    ]\n  }}'


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
