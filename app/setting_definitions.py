"""Each setting as `app.config` defines it: meaning, default, what it may be, when it counts."""

import ast
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from textwrap import dedent
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app.config import MOST_SEED, Settings, SettingsError, Size, Value, require_valid
from app.format import spelled_bytes
from engine.configuration import MAX_COUNT, Bounds, PredictorName

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
_LONG_TEXTS = ("chat.system_prompt",)


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    """One key of the settings file."""

    section: str
    key: str
    meaning: str
    default: object
    choices: tuple[str, ...] = ()
    """What it may be, where that is a closed set."""
    allowed: str = ""
    """What it may be, in words."""
    is_list: bool = False
    is_size: bool = False
    is_number: bool = False
    is_long: bool = False
    """Whether it is a text of several lines."""
    markdown: str = ""
    """The meaning with backticks, for the page."""

    @property
    def effect(self) -> str:
        """When a change counts."""
        return _EFFECTS.get(f"{self.section}.{self.key}", _EFFECTS[self.section])

    def value(self, settings: Settings) -> object:
        """What it is in some settings; None where it is not said."""
        table = getattr(settings, self.section)
        return table.get(self.key) if isinstance(table, dict) else getattr(table, self.key)

    def read(self, text: str) -> Value | None:
        """The value that a text spells; None is the default, which an empty text stands for.

        Raises:
            SettingsError: It may not be that; the message says what is possible.
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

    def spell(self, value: object) -> str:
        """A value as `read` takes it."""
        match value:
            case None | ():
                return ""
            case bool():
                return "on" if value else "off"
            case Enum():
                return str(value.value)
            case int() if self.is_size:
                return spelled_bytes(value)
            case tuple():
                return json.dumps([str(each) for each in value], ensure_ascii=False)
            case _:
                return str(value)


@cache
def definitions() -> tuple[SettingDefinition, ...]:
    """Every setting with a key of its own; the tables of prompts and keys hold what users name."""
    return tuple(each for section in SECTIONS for each in _of_section(section))


def _of_section(section: str) -> Iterator[SettingDefinition]:
    table = Settings.model_fields[section].annotation
    if not (isinstance(table, type) and (issubclass(table, BaseModel) or is_dataclass(table))):
        return
    meanings, defaults = _meanings(table), table()
    hints = get_type_hints(table, include_extras=True)
    fields = table.model_fields if issubclass(table, BaseModel) else {}
    for key in fields or table.__dataclass_fields__:
        kind = hints[key]
        marks = tuple(fields[key].metadata) if fields else ()
        choices, numbers = _possible(kind, marks)
        yield SettingDefinition(
            section,
            key,
            meanings.get(key, "").replace("`", ""),
            getattr(defaults, key),
            choices=() if numbers else choices,
            allowed=", or ".join(filter(None, (", ".join(choices), numbers))),
            is_list=isinstance(getattr(defaults, key), tuple),
            is_size=kind == Size,
            is_number=bool(numbers) or kind == Size,
            is_long=f"{section}.{key}" in _LONG_TEXTS,
            markdown=meanings.get(key, ""),
        )


def _meanings(table: type) -> dict[str, str]:
    """The text under each field of a class and of those that it extends, on one line."""
    found: dict[str, str] = {}
    for kind in reversed(table.__mro__):
        if not kind.__module__.startswith(("app.", "engine.")):
            continue
        [tree] = ast.parse(dedent(inspect.getsource(kind))).body
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                text = ast.literal_eval(below.value)
                found[ast.unparse(field.target)] = " ".join(text.split())
    return found


def _possible(kind: object, marks: Sequence[object]) -> tuple[tuple[str, ...], str]:
    """The words that a type takes, and the range of its numbers in words."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *own = get_args(kind)
        return _possible(inner, (*marks, *own))
    if origin in (Union, UnionType):
        found = [_possible(each, marks) for each in get_args(kind)]
        words = tuple(word for choices, _ in found for word in choices)
        return words, next((numbers for _, numbers in found if numbers), "")
    if origin is Literal:
        return tuple(map(str, get_args(kind))), ""
    if isinstance(kind, type) and issubclass(kind, Enum):
        # A custom predictor is Python code: a settings file cannot name one.
        return tuple(str(each.value) for each in kind if each is not PredictorName.CUSTOM), ""
    if kind is bool:
        return tuple(_SWITCH), ""
    return (), _range(marks, is_whole=kind is int) if kind in (int, float) else ""


def _range(marks: Sequence[object], *, is_whole: bool) -> str:
    limits: dict[str, float] = {}
    for mark in _flat(marks):
        if isinstance(mark, Bounds):
            limits |= mark.limits
        limits |= {n: getattr(mark, n) for n in ("ge", "gt", "le", "lt") if hasattr(mark, n)}
    if is_whole and "gt" in limits:
        limits["ge"] = limits.pop("gt") + 1
    high = limits.get("le", limits.get("lt", MAX_COUNT))
    if high in (MAX_COUNT, MOST_SEED):
        low = limits.get("ge", limits.get("gt", 0))
        return f"{low} or more" if "gt" not in limits else f"above {low}"
    return str(Bounds(**limits))


def _flat(marks: Sequence[object]) -> Iterator[object]:
    for mark in marks:
        if isinstance(mark, FieldInfo):
            yield from mark.metadata
        else:
            yield mark


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
