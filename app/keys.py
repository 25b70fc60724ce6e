"""The user's own keys: `[keys]` of the settings, made into what `App.set_keymap` takes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from engine.validation import did_you_mean


@dataclass(frozen=True, slots=True)
class Keymap:
    """Keys by binding id, and what could not be used."""

    keys: Mapping[str, str]
    problems: tuple[str, ...] = ()


def read_keymap(configured: Mapping[str, str], known_ids: Collection[str]) -> Keymap:
    """Give the keymap of the settings, leaving out what cannot work.

    Args:
        configured: Keys by binding id; several keys are separated by commas.
        known_ids: Every binding id of the application.
    """
    keys: dict[str, str] = {}
    problems: list[str] = []
    for binding_id, text in configured.items():
        parts = [part.strip() for part in text.split(",")]
        if binding_id not in known_ids:
            hint = did_you_mean(binding_id, known_ids) or ": the help screen shows the ids"
            problems.append(f"[keys] {binding_id} is no action{hint}")
        elif not all(parts):
            problems.append(f"[keys] {binding_id} names no key: write one such as f8 or ctrl+t")
        elif taken := _taken(parts, keys):
            problems.append(f"[keys] {binding_id} wants {taken[0]}, which {taken[1]} has already")
        else:
            keys[binding_id] = ",".join(parts)
    return Keymap(keys, tuple(problems))


def _taken(parts: list[str], keys: Mapping[str, str]) -> tuple[str, str] | None:
    for binding_id, text in keys.items():
        for part in parts:
            if part in text.split(","):
                return part, binding_id
    return None
