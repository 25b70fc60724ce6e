"""Built-in presets, and those of the user in a folder; faults raise `PresetFileError`."""

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from engine.configuration import Configuration, EngineSettings
from engine.errors import PresetError, PresetFileError
from engine.files import reason_of, replace_file
from engine.parsing import natural_key
from engine.presets.fields import nested, settings_of
from engine.presets.preset import Preset, made_preset, read_preset

PACKAGED = Path(__file__).resolve().parent / "_builtin"
CHECKOUT = Path(__file__).resolve().parent.parent.parent / "presets"
STEM_BYTES = 100
"""Maximum bytes of a file name without suffix; some file systems allow 143 in all."""


@dataclass(frozen=True, slots=True)
class PresetEntry:
    """A preset file in a list."""

    path: Path
    name: str
    description: str
    is_builtin: bool
    problem: str | None = None
    """Why it cannot be used."""
    preset: Preset | None = None


def builtin_dir() -> Path:
    """The folder of the built-in presets: the wheel's, or the checkout's."""
    return PACKAGED if PACKAGED.is_dir() else CHECKOUT


def list_presets(user_dir: Path) -> list[PresetEntry]:
    """The user's presets, then the built-in ones; broken files are listed with the reason."""
    entries = []
    for folder in (user_dir, builtin_dir()):
        for path in sorted(folder.glob("*.toml"), key=lambda path: natural_key(path.stem)):
            name, text, is_builtin, preset, problem = path.stem, "", folder != user_dir, None, None
            try:
                preset = read_preset(path)
                name, text = preset.name, preset.description
            except PresetError as error:
                problem = str(error)
            entries.append(PresetEntry(path, name, text, is_builtin, problem, preset))
    return entries


def find_preset(name: str, user_dir: Path) -> Preset:
    """A preset by its name or path; the user's precede built-in ones."""
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return read_preset(path)
    if (entry := named_preset(name, user_dir, or_file=True)) is not None:
        return entry.preset or read_preset(entry.path)
    if path.is_file():
        raise PresetFileError(f"{name} is not a preset file: preset files end in .toml")
    known = ", ".join(entry.name for entry in list_presets(user_dir))
    raise PresetFileError(f"there is no preset {name!r}: the presets are {known}")


def named_preset(name: str, user_dir: Path, *, or_file: bool = False) -> PresetEntry | None:
    """The preset of a name in any case, the user's first; `or_file` also finds a file's name."""
    entries, wanted = list_presets(user_dir), _folded(name)
    found = [entry for entry in entries if _folded(entry.name) == wanted]
    found += [entry for entry in entries if or_file and _folded(entry.path.stem) == wanted]
    return found[0] if found else None


def new_path(name: str, user_dir: Path, *, old: Path | None = None) -> Path:
    """Path of a new preset file that does not exist yet; `old` is a file that it may replace."""
    used = {_folded(path.stem) for path in user_dir.glob("*.toml") if path != old}
    words = re.sub(r"[\W_]+", "-", _folded(name))
    stem = words.encode()[:STEM_BYTES].decode(errors="ignore").strip("-") or "preset"
    stems = (stem, *(f"{stem}-{number}" for number in range(2, len(used) + 2)))
    return user_dir / f"{next(each for each in stems if each not in used)}.toml"


def save_preset(preset: Preset, user_dir: Path, *, replace_existing: bool = False) -> Path:
    """Write a preset into the user's folder; it replaces a preset with the same name."""
    existing = named_preset(preset.name, user_dir)
    if existing is None:
        return _write(preset, new_path(preset.name, user_dir))
    if existing.is_builtin or not replace_existing:
        raise _in_use(existing)
    return _write(preset, existing.path)


def preset_toml(preset: Preset) -> str:
    """The text of a preset's file: every value that differs from the default or was set.

    A type that was set stays fixed when a goal or a budget chooses the others.
    """
    import tomlkit  # takes 0.02 s, and most commands write no preset

    data = preset.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    given = preset.model_dump(mode="json", include=preset.model_fields_set, exclude_none=True)
    data |= {name: value for name, value in given.items() if not isinstance(value, dict | list)}
    left_open = {"n_threads", "n_threads_batch"}  # which read `auto` as the None that TOML lacks
    data |= dict.fromkeys(left_open & preset.model_fields_set - data.keys(), "auto")
    names = sorted(data, key=lambda name: name in EngineSettings.__annotations__)
    return tomlkit.dumps({"name": preset.name, **{name: data[name] for name in names}})


def rename_preset(path: Path, name: str, user_dir: Path) -> Path:
    """Rename a preset of the user."""
    _check_is_users(path, user_dir)
    renamed = made_preset({**read_preset(path).model_dump(exclude_unset=True), "name": name})
    existing = named_preset(name, user_dir)
    if existing is not None and existing.path.resolve() != path.resolve():
        raise _in_use(existing)
    written = _write(renamed, new_path(name, user_dir, old=user_dir / path.name))
    if written.name != path.name and not written.samefile(path):  # one if case is ignored
        path.unlink()
    return written


def delete_preset(path: Path, user_dir: Path) -> None:
    """Delete a preset of the user."""
    _check_is_users(path, user_dir)
    try:
        path.unlink()
    except OSError as error:
        raise PresetFileError(f"{path} cannot be deleted: {reason_of(error)}") from error


def preset_of(configuration: Configuration, name: str) -> Preset:
    """The preset of a configuration, with its values other than the defaults."""
    full = made_preset({**nested(settings_of(configuration)), "name": name})
    return made_preset({"name": name, **full.model_dump(exclude_defaults=True)})


def _check_is_users(path: Path, user_dir: Path) -> None:
    if path.resolve().parent != user_dir.resolve():
        raise PresetFileError(f"{path.stem} is a built-in preset: save a copy under another name")


def _in_use(entry: PresetEntry) -> PresetFileError:
    start = "the" if entry.is_builtin else "a"
    reason = "is built in and cannot be changed" if entry.is_builtin else "exists already"
    return PresetFileError(f"{start} preset {entry.name!r} {reason}: choose another name")


def _write(preset: Preset, path: Path) -> Path:
    try:
        replace_file(path, [preset_toml(preset).encode()], is_durable=False)
    except OSError as error:
        raise PresetFileError(f"{path} cannot be written: {reason_of(error)}") from error
    return path


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())
