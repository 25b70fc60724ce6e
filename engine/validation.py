"""Explain errors in user files and suggest corrections."""

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import TYPE_CHECKING, Annotated, TypeVar, Union, get_args, get_origin

from engine.errors import shown
from engine.parsing import MAX_JSON, parse_json

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Value = TypeVar("Value")
MAX_FAULTS = 20
"""Maximum number of faults in a message."""
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def nearest(wanted: str, names: Iterable[str], *, n: int = 1, cutoff: float = 0.6) -> list[str]:
    """The names most similar to a wrong one, best first.

    Args:
        wanted: The wrong name.
        names: Valid names.
        n: Maximum number of names.
        cutoff: Minimum similarity from 0 to 1.
    """
    import difflib  # needed after mistakes only

    return difflib.get_close_matches(wanted, list(names), n=n, cutoff=cutoff)


def did_you_mean(wanted: str, names: Iterable[str]) -> str:
    """`, did you mean NAME?` with the most similar name; empty if none is similar."""
    return "".join(f", did you mean {name}?" for name in nearest(wanted, names))


def read_versioned(
    text: str, kind: type[Value], version: int, *, key: str = "version", limit: int = MAX_JSON
) -> Value:
    """Parse and validate a versioned JSON text.

    Args:
        text: The text.
        kind: Data class of the result.
        version: The supported version.
        key: Key of the version in the text.
        limit: Maximum characters of the text.

    Raises:
        ValueError: it is not JSON, of another version or invalid; the message has the location.
    """
    from pydantic import TypeAdapter, ValidationError  # takes longer to import than most commands

    data = parse_json(text, limit=limit)
    found = data.get(key) if isinstance(data, dict) else None
    if found != version:
        raise ValueError(f"it has the {key} {found!r}, but this kvchat supports {version}")
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"it is damaged at {where}: {first['msg']}") from error


def explain(
    error: "ValidationError", model: "type[BaseModel]", *, unknown: str = "an unknown key"
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the location of each fault, and the rest of a sentence that begins with its key.

    Args:
        error: The validation error.
        model: The validated model.
        unknown: Description of an unknown key.
    """
    faults: dict[tuple[str, ...], str] = {}
    for item in error.errors(include_url=False):
        where, names = _known(tuple(map(str, item["loc"])), model)
        if item["type"] in _UNKNOWN:
            # A file may have any number of unknown keys; only the first are shown.
            hint = did_you_mean(where[-1], names) if len(faults) < MAX_FAULTS else ""
            listed = hint or f" (known: {', '.join(names)})"
            faults.setdefault(where, f" is {unknown}{listed}")
        elif item["type"] == "missing":
            faults.setdefault(where, " is missing")
        elif item["type"] == "value_error":
            faults.setdefault(where, f": {item['msg'].removeprefix('Value error, ')}")
        else:
            message = f"{item['msg'][:1].lower()}{item['msg'][1:]}"
            other = faults.get(where)  # of another member of a union
            start = f" is {shown(item['input'])}:" if other is None else f"{other}, or"
            faults[where] = f"{start} {message}"
    yield from faults.items()


def explain_faults(faults: Iterable[tuple[tuple[str, ...], str]], *, between: str = "; ") -> str:
    """Text with the first `MAX_FAULTS` faults and the number of further ones."""
    lines = [f"{'.'.join(where)}{reason}" for where, reason in faults]
    more = [f"and {len(lines) - MAX_FAULTS:,} more"] if len(lines) > MAX_FAULTS else []
    return between.join([*lines[:MAX_FAULTS], *more])


def faults_of(error: "ValidationError", model: "type[BaseModel]", source: str) -> str:
    """Message about the faults of the file `source`, one per line."""
    faults = list(explain(error, model))
    count = f"{len(faults)} faults" if len(faults) > 1 else "one fault"
    return f"{source} has {count}:\n  " + explain_faults(faults, between="\n  ")


def _known(where: tuple[str, ...], model: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A location without the union members that pydantic appends, and its sibling keys."""
    known: list[str] = []
    names: tuple[str, ...] = ()
    for part in where:
        inner = _fields_of(model)
        if inner is None:
            break
        names = tuple(inner)
        known.append(part)
        model = inner.get(part, inner.get(""))
    return tuple(known), names


def _fields_of(model: object) -> dict[str, object] | None:
    """Field types of a model or data class; the key "" stands for all keys of a collection."""
    origin = get_origin(model)
    if origin is Annotated:
        return _fields_of(get_args(model)[0])
    if origin in (Union, UnionType):
        return next((found for each in get_args(model) if (found := _fields_of(each))), None)
    if origin in (dict, tuple, list):
        return {"": next((each for each in reversed(get_args(model)) if each is not ...), None)}
    if (found := getattr(model, "model_fields", None)) is not None:
        return {name: each.annotation for name, each in found.items()}
    if isinstance(model, type) and is_dataclass(model):
        return {each.name: each.type for each in fields(model)}
    return None
