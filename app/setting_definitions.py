"""Each setting of `app.config` with meaning, default, allowed values and time of effect."""

import ast
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import Any

from app.config import SIZE_FORMAT, Settings, SettingsError, Value, require_valid
from app.format import exact_bytes
from engine.configuration import Bounds, PredictorName

SECTIONS: Mapping[str, str] = {
    "ui": "screen",
    "chat": "replies",
    "prompts": "system prompts",
    "engine": "engine and context",
    "speculation": "speculation",
    "models": "models",
    "cache": "saved states of chats",
    "cache_policy": "quality limits of KV cache types",
    "keys": "keys",
}
"""The tables of the settings file in the order in which they are listed, and their titles."""

AT_ONCE, NEXT_CHAT = "at once", "in new chats"
NEXT_LOAD, NEXT_START = "at the next model load", "at the next start of kvchat"
_EFFECTS: Mapping[str, str] = {
    "ui": AT_ONCE,
    "chat": NEXT_CHAT,
    "chat.max_tokens": AT_ONCE,
    "chat.stop": AT_ONCE,
    "chat.seed": AT_ONCE,
    "chat.reopen": NEXT_START,
    "prompts": AT_ONCE,
    "engine": NEXT_LOAD,
    "speculation": AT_ONCE,
    "models": NEXT_START,
    "cache": NEXT_START,
    "cache.slots": NEXT_LOAD,
    "cache_policy": NEXT_LOAD,
    "keys": AT_ONCE,
}
"""When a change counts, by table, and by key where that differs."""

_SWITCH = {"on": True, "off": False}
A_SIZE = "a size such as 512MiB, or 0"
_LONG_TEXTS = ("chat.system_prompt",)


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    """One key of the settings file."""

    section: str
    key: str
    meaning: str
    default: object
    choices: tuple[str, ...] = ()
    """Allowed values of a setting with a fixed set of values."""
    allowed: str = ""
    """Allowed values of the setting, in words."""
    is_list: bool = False
    is_size: bool = False
    is_number: bool = False
    is_long: bool = False
    """Whether the value is a text of several lines."""
    markdown: str = ""
    """The meaning with backticks, for the page."""

    @property
    def effect(self) -> str:
        """When a change counts."""
        return _EFFECTS.get(f"{self.section}.{self.key}", _EFFECTS[self.section])

    def value(self, settings: Settings) -> object:
        """The value in these settings; None if it is not set."""
        table = getattr(settings, self.section)
        return table.get(self.key) if isinstance(table, dict) else getattr(table, self.key)

    def read(self, text: str) -> Value | None:
        """Parse a value; None for an empty text, which is the default.

        Raises:
            SettingsError: the value is not allowed; the message lists what is.
        """
        if not (text if self.is_long else text.strip()):
            return None
        value = self._parsed(text if self.is_long else text.strip())
        try:
            require_valid(self.section, self.key, value)
        except SettingsError as error:
            hint = f": write {self.allowed}" if self.allowed else ""
            raise SettingsError(f"{error}{hint}") from error
        return value

    def _parsed(self, text: str) -> Value:
        if self.choices:
            return _SWITCH.get(text, text) if isinstance(self.default, bool) else text
        if self.is_list:
            return _list(text)
        for kind in (int, float) if self.is_number else ():
            try:
                return kind(text.replace(",", "."))
            except ValueError:
                continue
        return text

    def format(self, value: object) -> str:
        """A value as text that `read` parses."""
        match value:
            case None | ():
                return ""
            case bool():
                return "on" if value else "off"
            case Enum():
                return str(value.value)
            case int() if self.is_size:
                return exact_bytes(value)
            case tuple():
                return json.dumps([str(each) for each in value], ensure_ascii=False)
            case _:
                return str(value)


@cache
def definitions() -> tuple[SettingDefinition, ...]:
    """Every setting with a name of its own; users name the keys of the other tables."""
    return tuple(each for section in SECTIONS for each in _of_section(section))


@cache
def settings_schema() -> dict[str, Any]:
    """The JSON schema of the settings file, with the meaning of every key."""
    schema = Settings.model_json_schema()
    for each in schema["properties"].values():
        each.pop("default", None)
    for section, table in _tables(schema):
        for key, meaning in _meanings(section).items():
            table["properties"][key]["description"] = meaning
    return schema


def _tables(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas of the tables with keys of kvchat's."""
    for section, table in schema["properties"].items():
        if "$ref" in table:
            yield section, _resolved(schema, table)


def _resolved(schema: Mapping[str, Any], each: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema["$defs"][each["$ref"].rpartition("/")[2]]
    return found


def _of_section(section: str) -> Iterator[SettingDefinition]:
    schema = settings_schema()
    table, defaults = dict(_tables(schema)).get(section), getattr(Settings(), section)
    for key, each in table["properties"].items() if table else ():
        meaning = each.get("description", "")
        options = [
            _resolved(schema, option) if "$ref" in option else option
            for option in each.get("anyOf", [each])
        ]
        words = tuple(word for option in options for word in _words(option))
        number = next((o for o in options if o.get("type") in ("integer", "number")), None)
        is_size = each.get("format") == SIZE_FORMAT
        numbers = A_SIZE if is_size else "" if number is None else _range(number)
        yield SettingDefinition(
            section,
            key,
            meaning.replace("`", ""),
            getattr(defaults, key),
            choices=() if number else words,
            allowed=", or ".join(filter(None, (", ".join(words), numbers))),
            is_list=each.get("type") == "array",
            is_size=is_size,
            is_number=number is not None or is_size,
            is_long=f"{section}.{key}" in _LONG_TEXTS,
            markdown=meaning,
        )


def _meanings(section: str) -> dict[str, str]:
    """The docstring of each field of a table, on one line."""
    table = Settings.model_fields[section].annotation
    assert isinstance(table, type)
    kinds = [kind for kind in table.__mro__ if kind.__module__.startswith(("app.", "engine."))]
    trees = [ast.parse(inspect.getsource(kind)).body[0] for kind in kinds]
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(below.value).split())
        for tree in trees
        for field, below in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ())
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr)
    }


def _words(option: Mapping[str, Any]) -> Sequence[str]:
    """Allowed values of a schema that allows only certain words."""
    if option.get("type") == "boolean":
        return tuple(_SWITCH)
    words = option.get("enum", [option["const"]] if "const" in option else [])
    # A custom predictor is Python code: a settings file cannot name one.
    return [word for word in words if word != PredictorName.CUSTOM]


def _range(option: Mapping[str, Any]) -> str:
    names = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
    return str(Bounds(**{name: option[key] for name, key in names.items() if key in option}))


def _list(text: str) -> list[str]:
    """Texts as a TOML or JSON list, or separated by commas.

    Raises:
        SettingsError: The list does not end, or holds something else than texts.
    """
    if not text.startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SettingsError('not a valid list: write ["one", "another"]') from error
    if not all(isinstance(each, str) for each in found):
        raise SettingsError('each item must be text in quotes: write ["one", "another"]')
    return [str(each) for each in found]
