"""A setting as a row with its value and source, and its facts."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.config import LoadedSettings
from app.render.lines import EMPTY, Line, Run, clipped, spread, width_of, wrapped
from app.sanitize import visible
from app.setting_definitions import SettingDefinition

KEY_WIDTH = 30
NONE = "none"
"""Shown for an empty value."""
FILE = "config.toml"


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A setting with its current value and the source of the value."""

    definition: SettingDefinition
    text: str
    source: str
    is_default: bool
    fault: str = ""
    """Why the value in the file is ignored."""

    @property
    def words(self) -> str:
        """The text that a search matches."""
        each = self.definition
        parts = (each.section, each.key, each.key.replace("_", " "), each.meaning, self.text)
        return " ".join(parts).lower()


def value_of(
    definition: SettingDefinition,
    loaded: LoadedSettings,
    beside: Mapping[tuple[str, str], tuple[str, str]],
) -> SettingValue:
    """The current value of a setting.

    Args:
        definition: The setting.
        loaded: The contents of the file.
        beside: Values from other sources and the names of these sources, by table and key.
    """
    place = (definition.section, definition.key)
    value = definition.value(loaded.settings)
    fault = loaded.faults.get(place, "") or loaded.faults.get(place[:1], "")
    if place in beside:
        text, source = beside[place]
        return SettingValue(definition, text, source, is_default=False, fault=fault)
    is_set = place in loaded.given and not fault
    text = definition.format(definition.default if value is None else value)
    source = FILE if place in loaded.given else "default"
    is_default = not is_set and value in (None, definition.default)
    return SettingValue(definition, text, source, is_default=is_default, fault=fault.strip())


def setting_line(setting: SettingValue, width: int) -> Line:
    """Name, value and source in a line of a list."""
    source = Run("" if setting.source == "default" else setting.source, "muted")
    if setting.fault:
        source = Run("ignored", "bad")
    name = visible(setting.definition.key)
    name_width = min(KEY_WIDTH, max(width // 3, 12))
    shown = visible(" ".join(setting.text.split())) or NONE
    style = "muted" if setting.is_default else "strong"
    left = clipped((Run(name),), name_width)
    gap = Run(" " * (name_width + 2 - width_of(left)))
    return spread((*left, gap, Run(shown, style)), (source,), width)


def title_line(title: str, width: int) -> Line:
    """The title of a section."""
    return clipped((Run(title, "accent"),), width)


def detail_lines(setting: SettingValue | None, width: int) -> list[Line]:
    """Meaning, default, allowed values, source and effect of a setting."""
    if setting is None:
        return [EMPTY]
    each = setting.definition
    default = each.format(each.default)
    facts = [f"default {visible(default)}" if default else "no default"]
    facts += [each.allowed] if each.allowed else []
    where = (f"[{each.section}] {visible(each.key)}", setting.source, f"takes effect {each.effect}")
    fault = (Run(f"the value in the file is ignored: {visible(setting.fault)}", "bad"),)
    return [
        *(wrapped(fault, width) if setting.fault else ()),
        *wrapped((Run(visible(each.meaning)),), width),
        *wrapped((Run(" · ".join(facts), "muted"),), width),
        *wrapped((Run(" · ".join(where), "muted"),), width),
    ]
