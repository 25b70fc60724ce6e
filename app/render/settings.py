"""The settings as a list: name, value and where it comes from; and all there is to say of one."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.config import LoadedSettings
from app.render.lines import EMPTY, Line, Run, clipped, spread, width_of, wrapped
from app.sanitize import visible
from app.setting_definitions import SettingDefinition

KEY_WIDTH = 30
NONE = "none"
"""Shown for a value that is empty."""
FILE = "config.toml"


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A setting, what it is now, and where that comes from."""

    definition: SettingDefinition
    text: str
    """The value as it is written."""
    source: str
    is_default: bool
    fault: str = ""
    """Why what the file says is not used."""

    @property
    def words(self) -> str:
        """What a search finds it by."""
        each = self.definition
        parts = (each.section, each.key, each.key.replace("_", " "), each.meaning, self.text)
        return " ".join(parts).lower()


def value_of(
    definition: SettingDefinition,
    loaded: LoadedSettings,
    beside: Mapping[tuple[str, str], tuple[str, str]],
) -> SettingValue:
    """A setting as it counts.

    Args:
        definition: The setting.
        loaded: What the file says.
        beside: Values that come from elsewhere, and from where, by table and key.
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
    """The title of a table."""
    return clipped((Run(title, "accent"),), width)


def detail_lines(setting: SettingValue | None, width: int) -> list[Line]:
    """What a setting means, what it may be, its default, where it comes from and when it counts."""
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
