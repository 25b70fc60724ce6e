"""Writes a recommended policy into a preset, and leaves everything else in it."""

from pathlib import Path

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from app.bench.policies import Policy
from app.config import write_atomically
from engine.configuration import PredictorName
from engine.errors import EngineError, PresetError
from engine.files import SETTINGS_BYTES, read_text
from engine.presets.library import list_presets
from engine.presets.preset import parse_preset

SECTION = "speculation"


def find_target(name: str, user_dir: Path) -> Path:
    """The file that a preset's name or path means; it need not be there yet.

    Raises:
        PresetError: it is a preset that comes with kvchat, which stays as it is.
    """
    path = Path(name).expanduser()
    if path.suffix == ".toml":
        return path
    entries = list_presets(user_dir)
    for entry in entries:
        if name.lower() in (entry.name.lower(), entry.path.stem.lower()):
            if entry.is_builtin:
                raise PresetError(
                    f"the preset {entry.name!r} comes with kvchat and is not changed: write to a "
                    "name of your own, which is made if it is not there"
                )
            return entry.path
    return user_dir / f"{name}.toml"


def write_policy(
    path: Path, policy: Policy | None, *, model: Path, draft: Path | None, name: str
) -> None:
    """Put a policy into `[speculation]`; comments, order and all other keys stay.

    A preset that is not there is made, for this model. Where a draft model takes part it is named
    under `[draft]`, unless the preset names one already.

    Args:
        path: The preset's file.
        policy: What to set; None switches speculation off.
        model: The model that was measured.
        draft: The draft model that was loaded, if any.
        name: Name of a preset that is made.

    Raises:
        PresetError: the file is not a valid preset, or would not be one, or cannot be written.
    """
    document = _read(path) if path.exists() else _new(name, model)
    section = document.setdefault(SECTION, tomlkit.table())
    if not isinstance(section, Table):
        raise PresetError(f"{path}: write [{SECTION}] as a table there first")
    for key, value in _keys(policy).items():
        section[key] = value
    if (
        draft is not None
        and (policy is not None and policy.uses_draft_model)
        and "draft" not in document
    ):
        document["draft"] = tomlkit.item({"model": str(draft)})
    text = tomlkit.dumps(document)
    parse_preset(text, path.name)
    try:
        write_atomically(path, text)
    except EngineError as error:
        raise PresetError(str(error)) from error


def _keys(policy: Policy | None) -> dict[str, str | int]:
    if policy is None:
        return {"predictor": PredictorName.OFF.value}
    keys: dict[str, str | int] = {
        "predictor": policy.predictor.value,
        "controller": policy.controller.value,
    }
    if policy.custom:
        keys["custom_predictor"] = policy.custom
    if policy.n_draft is not None:
        keys["n_draft"] = policy.n_draft
    return keys


def _read(path: Path) -> TOMLDocument:
    try:
        text = read_text(path, limit=SETTINGS_BYTES)
        parse_preset(text, path.name)
        return tomlkit.parse(text)
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise PresetError(f"{path} cannot be read as a preset: {error}") from error


def _new(name: str, model: Path) -> TOMLDocument:
    document = tomlkit.document()
    document["name"] = name
    document["model"] = str(model)
    return document
