"""The presets that come with kvchat, and those of the user in a folder."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import tomlkit

from engine.configuration import Configuration, EngineSettings
from engine.errors import PresetError
from engine.files import replace_file
from engine.presets.preset import Preset, read_preset
from engine.validation import explain, explained

PACKAGED = Path(__file__).resolve().parent / "_builtin"
CHECKOUT = Path(__file__).resolve().parent.parent.parent / "presets"


@dataclass(frozen=True, slots=True)
class PresetEntry:
    """A preset file in a list; `problem` says why it cannot be used."""

    path: Path
    name: str
    description: str
    is_builtin: bool
    problem: str | None = None
    preset: Preset | None = None
    """What the file says; None where it cannot be used."""


def builtin_dir() -> Path:
    """The folder of the presets that come with kvchat: the wheel's, or the checkout's."""
    return PACKAGED if PACKAGED.is_dir() else CHECKOUT


def list_presets(user_dir: Path) -> list[PresetEntry]:
    """The user's presets, then the built-in ones; broken files are listed with the reason."""
    return [
        *(_entry(path, is_builtin=False) for path in _sorted(user_dir)),
        *(_entry(path, is_builtin=True) for path in _sorted(builtin_dir())),
    ]


def _sorted(folder: Path) -> list[Path]:
    """The preset files of a folder by name, numbers by their value: 6 before 12."""
    return sorted(
        folder.glob("*.toml"),
        key=lambda path: [
            (not part.isdigit(), int(part) if part.isdigit() else 0, part)
            for part in re.split(r"(\d+)", path.stem.lower())
        ],
    )


def find_preset(name: str, user_dir: Path) -> Preset:
    """A preset by its name or path; the user's come before built-in ones.

    Raises:
        PresetError: there is none, or it is not valid.
    """
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return read_preset(path)
    entries = list_presets(user_dir)
    for entry in entries:
        if name.lower() in (entry.name.lower(), entry.path.stem.lower()):
            return entry.preset or read_preset(entry.path)
    if path.is_file():
        raise PresetError(f"{name} is no preset: their files end in .toml")
    known = ", ".join(entry.name for entry in entries)
    raise PresetError(f"there is no preset {name!r}: there are {known}")


def save_preset(preset: Preset, user_dir: Path, *, replace_existing: bool = False) -> Path:
    """Write a preset into the user's folder, without the values that are defaults.

    Raises:
        PresetError: the name is taken, or the folder cannot be written.
    """
    path = user_dir / f"{_file_stem(preset.name)}.toml"
    if path.exists() and not replace_existing:
        raise PresetError(f"there is a preset {preset.name!r} already: choose another name")
    text = preset_toml(preset)
    try:
        replace_file(path, [text.encode()], is_durable=False)
    except OSError as error:
        raise PresetError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def preset_toml(preset: Preset) -> str:
    """The text of a preset's file, without the values that are defaults."""
    data = preset.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    names = sorted(data, key=lambda name: name in EngineSettings.__annotations__)
    return tomlkit.dumps({"name": preset.name, **{name: data[name] for name in names}})


def rename_preset(path: Path, name: str, user_dir: Path) -> Path:
    """Rename a preset of the user.

    Raises:
        PresetError: the name is taken or impossible, or the preset is a built-in one.
    """
    _check_is_users(path, user_dir)
    preset = read_preset(path)
    named = _named(preset, name)
    # `Fast` and `fast` are one file: the new name takes the place of the old one.
    is_same_file = path.stem == _file_stem(name)
    renamed = save_preset(named, user_dir, replace_existing=is_same_file)
    if not is_same_file:
        path.unlink()
    return renamed


def delete_preset(path: Path, user_dir: Path) -> None:
    """Delete a preset of the user.

    Raises:
        PresetError: it is a built-in one, or cannot be deleted.
    """
    _check_is_users(path, user_dir)
    try:
        path.unlink()
    except OSError as error:
        raise PresetError(f"{path} cannot be deleted: {error.strerror or error}") from error


def preset_of(configuration: Configuration, name: str) -> Preset:
    """A preset that resolves to a configuration again.

    Raises:
        PresetError: the name is impossible.
    """
    data: dict[str, object] = {
        **configuration.shared(),
        "name": name,
        "model": str(configuration.model_path),
        "n_ctx": configuration.n_ctx,
        "type_k": configuration.type_k,
        "type_v": configuration.type_v,
        "n_gpu_layers": _layers(configuration.n_gpu_layers),
        "n_cpu_moe": _layers(configuration.n_cpu_moe),
        "mmproj": None if configuration.mmproj_path is None else str(configuration.mmproj_path),
        "lora": [adapter.spelled for adapter in configuration.adapters],
        "sampling": asdict(configuration.sampling),
    }
    draft = configuration.draft
    if draft is not None:
        data["draft"] = {
            "model": str(draft.model_path),
            "n_gpu_layers": _layers(draft.n_gpu_layers),
            "type_k": draft.type_k,
            "type_v": draft.type_v,
        }
    return made_preset(data)


def _layers(n_layers: int) -> int | str:
    return "all" if n_layers < 0 else n_layers


def _named(preset: Preset, name: str) -> Preset:
    return made_preset({**preset.model_dump(exclude_defaults=True), "name": name})


def made_preset(data: Mapping[str, object]) -> Preset:
    """A preset of these keys.

    Raises:
        PresetError: they make none; every fault is named.
    """
    from pydantic import ValidationError

    try:
        return Preset.model_validate(data)
    except ValidationError as error:
        raise PresetError(f"this makes no preset: {explained(explain(error, Preset))}") from error


def _entry(path: Path, *, is_builtin: bool) -> PresetEntry:
    try:
        preset = read_preset(path)
    except PresetError as error:
        return PresetEntry(path, path.stem, "", is_builtin, problem=str(error))
    return PresetEntry(path, preset.name, preset.description, is_builtin, preset=preset)


def _check_is_users(path: Path, user_dir: Path) -> None:
    if path.resolve().parent != user_dir.resolve():
        raise PresetError(f"{path.stem} is a built-in preset: save a copy under another name")


def _file_stem(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "preset"
