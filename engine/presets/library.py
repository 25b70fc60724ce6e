"""The presets that come with kvchat, and those of the user in a folder."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import tomlkit

from engine.configuration import Configuration, EngineSettings
from engine.errors import PresetError, PresetFileError
from engine.files import replace_file
from engine.presets.preset import Preset, read_preset
from engine.validation import explain, explain_faults

PACKAGED = Path(__file__).resolve().parent / "_builtin"
CHECKOUT = Path(__file__).resolve().parent.parent.parent / "presets"
STEM_BYTES = 100
"""Most bytes of a file's name before its suffix: some file systems take 143 in all."""


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
        PresetFileError: there is none, or it is not valid.
    """
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return read_preset(path)
    if (entry := named_preset(name, user_dir, or_file=True)) is not None:
        return entry.preset or read_preset(entry.path)
    if path.is_file():
        raise PresetFileError(f"{name} is not a preset: their files end in .toml")
    known = ", ".join(entry.name for entry in list_presets(user_dir))
    raise PresetFileError(f"no preset is called {name!r}: there are {known}")


def named_preset(name: str, user_dir: Path, *, or_file: bool = False) -> PresetEntry | None:
    """The preset of a name, in any case and wherever its file lies; the user's come first.

    Args:
        name: What it is called.
        user_dir: The user's presets.
        or_file: Whether one counts whose file is called so, where none has the name.
    """
    entries, wanted = list_presets(user_dir), _folded(name)
    found = [entry for entry in entries if _folded(entry.name) == wanted]
    if or_file:
        found += [entry for entry in entries if _folded(entry.path.stem) == wanted]
    return found[0] if found else None


def new_path(name: str, user_dir: Path, *, old: Path | None = None) -> Path:
    """A free file for a preset of a name that is new; `old` is one that it may replace."""
    taken = {_folded(path.stem) for path in _sorted(user_dir) if old is None or path != old}
    stem = _file_stem(name)
    stems = (stem, *(f"{stem}-{number}" for number in range(2, len(taken) + 2)))
    return user_dir / f"{next(each for each in stems if each not in taken)}.toml"


def save_preset(preset: Preset, user_dir: Path, *, replace_existing: bool = False) -> Path:
    """Write a preset into the user's folder, with the values that it says.

    A preset of that name is replaced wherever its file lies; no other file is touched.

    Raises:
        PresetFileError: the name is taken or a built-in one's, or the folder cannot be written.
    """
    there = named_preset(preset.name, user_dir)
    if there is None:
        return _write(preset, new_path(preset.name, user_dir))
    if there.is_builtin or not replace_existing:
        raise _taken(there)
    return _write(preset, there.path)


def preset_toml(preset: Preset) -> str:
    """The text of a preset's file: what is no default, and what was said all the same.

    A type that was said stays that type where a goal or a budget would choose another.
    """
    data = preset.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    said = preset.model_dump(mode="json", include=preset.model_fields_set, exclude_none=True)
    data |= {name: value for name, value in said.items() if not isinstance(value, dict | list)}
    left_open = ("n_threads", "n_threads_batch")  # which read `auto` as the None that TOML lacks
    said_auto = preset.model_fields_set.intersection(left_open) - data.keys()
    data |= dict.fromkeys(said_auto, "auto")
    names = sorted(data, key=lambda name: name in EngineSettings.__annotations__)
    return tomlkit.dumps({"name": preset.name, **{name: data[name] for name in names}})


def rename_preset(path: Path, name: str, user_dir: Path) -> Path:
    """Rename a preset of the user.

    Raises:
        PresetFileError: the name is taken or impossible, or the preset is a built-in one.
    """
    _check_is_users(path, user_dir)
    named = _named(read_preset(path), name)
    there = named_preset(name, user_dir)
    if there is not None and there.path.resolve() != path.resolve():
        raise _taken(there)
    renamed = _write(named, new_path(name, user_dir, old=user_dir / path.name))
    if renamed.name != path.name and not renamed.samefile(path):  # one where case is ignored
        path.unlink()
    return renamed


def delete_preset(path: Path, user_dir: Path) -> None:
    """Delete a preset of the user.

    Raises:
        PresetFileError: it is a built-in one, or cannot be deleted.
    """
    _check_is_users(path, user_dir)
    try:
        path.unlink()
    except OSError as error:
        raise PresetFileError(f"{path} cannot be deleted: {error.strerror or error}") from error


def preset_of(configuration: Configuration, name: str) -> Preset:
    """A preset that resolves to a configuration again; it says only what is no default.

    Raises:
        PresetFileError: the name is impossible.
    """
    data: dict[str, object] = {
        **configuration.shared_fields(),
        "name": name,
        "model": str(configuration.model_path),
        "n_ctx": configuration.n_ctx,
        "type_k": configuration.type_k,
        "type_v": configuration.type_v,
        "n_gpu_layers": _layers(configuration.n_gpu_layers),
        "n_cpu_moe": _layers(configuration.n_cpu_moe),
        "mmproj": None if configuration.mmproj_path is None else str(configuration.mmproj_path),
        "lora": [adapter.text for adapter in configuration.adapters],
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
    return made_preset({"name": name, **made_preset(data).model_dump(exclude_defaults=True)})


def _layers(n_layers: int) -> int | str:
    return "all" if n_layers < 0 else n_layers


def _named(preset: Preset, name: str) -> Preset:
    return made_preset({**preset.model_dump(exclude_unset=True), "name": name})


def made_preset(data: Mapping[str, object]) -> Preset:
    """A preset of these keys.

    Raises:
        PresetFileError: they make none; every fault is named.
    """
    from pydantic import ValidationError

    try:
        return Preset.model_validate(data)
    except ValidationError as error:
        raise PresetFileError(
            f"this is not a preset: {explain_faults(explain(error, Preset))}"
        ) from error


def _entry(path: Path, *, is_builtin: bool) -> PresetEntry:
    try:
        preset = read_preset(path)
    except PresetError as error:
        return PresetEntry(path, path.stem, "", is_builtin, problem=str(error))
    return PresetEntry(path, preset.name, preset.description, is_builtin, preset=preset)


def _check_is_users(path: Path, user_dir: Path) -> None:
    if path.resolve().parent != user_dir.resolve():
        raise PresetFileError(f"{path.stem} is a built-in preset: save a copy under another name")


def _taken(entry: PresetEntry) -> PresetFileError:
    if entry.is_builtin:
        return PresetFileError(
            f"the preset {entry.name!r} is built in and cannot be changed: choose another name"
        )
    return PresetFileError(f"a preset {entry.name!r} exists already: choose another name")


def _write(preset: Preset, path: Path) -> Path:
    try:
        replace_file(path, [preset_toml(preset).encode()], is_durable=False)
    except OSError as error:
        raise PresetFileError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())


def _file_stem(name: str) -> str:
    words = re.sub(r"[\W_]+", "-", _folded(name))
    return words.encode()[:STEM_BYTES].decode(errors="ignore").strip("-") or "preset"
