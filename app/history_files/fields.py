"""The fields of one JSON object, each checked before it is used."""

from collections.abc import Mapping
from typing import Literal, overload

from app.history_files.errors import HistoryFileError, wrong_line
from engine.parsing import parse_json

INT32 = range(-(2**31), 2**31)
INT64 = range(-(2**63), 2**63)


def parse_object(text: str, line: int) -> dict[str, object]:
    """Read one JSON object.

    Raises:
        HistoryFileError: If the text is no JSON object.
    """
    try:
        value = parse_json(text)
    except ValueError as error:
        raise wrong_line(line, f"this is no JSON of kvchat ({error}): is the file cut?") from error
    if not isinstance(value, dict):
        raise wrong_line(line, "a JSON object is expected")
    return value


class Fields:
    """Takes fields out of a JSON object; what is left at the end is an error.

    Attributes:
        line: The line of the file, counted from 1, that an error names.
    """

    def __init__(self, values: Mapping[str, object], line: int) -> None:
        self._values = dict(values)
        self.line = line

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, *, optional: Literal[True]) -> str | None: ...

    def text(self, name: str, *, optional: bool = False) -> str | None:
        """Take a text."""
        value = self._take(name, optional=optional)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(name, "a text")
        return value

    @overload
    def number(self, name: str) -> float: ...
    @overload
    def number(self, name: str, *, optional: Literal[True]) -> float | None: ...

    def number(self, name: str, *, optional: bool = False) -> float | None:
        """Take a number."""
        value = self._take(name, optional=optional)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "a number")
        return float(value)

    @overload
    def integer(self, name: str) -> int: ...
    @overload
    def integer(self, name: str, *, optional: Literal[True]) -> int | None: ...

    def integer(self, name: str, *, optional: bool = False) -> int | None:
        """Take an integer of 64 bits."""
        value = self._take(name, optional=optional)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value not in INT64:
            raise self.wrong(name, "an integer of 64 bits")
        return value

    def flag(self, name: str) -> bool:
        """Take true or false."""
        value = self._take(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def token_ids(self, name: str) -> tuple[int, ...] | None:
        """Take a list of integers of 32 bits, or null."""
        value = self._take(name, optional=True)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            raise self.wrong(name, "a list of token ids")
        if any(each not in INT32 for each in value):
            raise self.wrong(name, "a list of token ids of 32 bits")
        return tuple(value)

    def fields(self, name: str) -> "Fields":
        """Take a JSON object whose fields are checked too."""
        return Fields(self.values(name) or {}, self.line)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def values(self, name: str, *, optional: bool = False) -> dict[str, object] | None:
        """Take a JSON object, whatever it holds."""
        value = self._take(name, optional=optional)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, "a JSON object")
        return value

    def end(self) -> None:
        """Make sure that every field was taken.

        Raises:
            HistoryFileError: If one was not, so nothing is dropped in silence.
        """
        if self._values:
            names = ", ".join(map(repr, self._values))
            raise wrong_line(self.line, f"{names} is unknown here: a newer kvchat may have made it")

    def wrong(self, name: str, expected: str) -> HistoryFileError:
        """Give the error of a field that is not what it should be."""
        return wrong_line(self.line, f"{name!r} is not {expected}")

    def _take(self, name: str, *, optional: bool = False) -> object:
        if name not in self._values and not optional:
            raise wrong_line(self.line, f"{name!r} is missing")
        value = self._values.pop(name, None)
        if value is None and not optional:
            raise wrong_line(self.line, f"{name!r} is null")
        return value
