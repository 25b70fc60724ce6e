"""The JSON file of a benchmark: written after every prompt, read again to go on."""

import dataclasses
import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from app.bench.errors import BenchError
from app.bench.records import SCHEMA, Results, Subject
from app.config import SettingsError, write_atomically
from engine.files import RECORDS_BYTES, read_text
from engine.parsing import parse_json

_ADAPTER = TypeAdapter(Results)


def write_results(path: Path, results: Results) -> None:
    """Replace the file whole, so that a crash leaves the last complete one.

    Raises:
        BenchError: the file cannot be written.
    """
    text = json.dumps(dataclasses.asdict(results), ensure_ascii=False, indent=1)
    write_text(path, f"{text}\n")


def write_text(path: Path, text: str) -> None:
    """Write a report's file.

    Raises:
        BenchError: the file cannot be written.
    """
    try:
        write_atomically(path, text)
    except SettingsError as error:
        raise BenchError(str(error)) from error


def read_results(path: Path) -> Results:
    """Read what `write_results` wrote.

    Raises:
        BenchError: the file cannot be read, is not of a benchmark, or of another version.
    """
    try:
        text = read_text(path, limit=RECORDS_BYTES)
        data = parse_json(text)
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} cannot be read as results of a benchmark: {error}") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise BenchError(
            f"{path} has the schema {schema!r} and this kvchat reads {SCHEMA}: measure again"
        )
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise BenchError(f"{path} is damaged at {where}: {first['msg']}") from error


def check_same_subject(old: Subject, new: Subject) -> None:
    """Make sure that runs to come can stand beside those of a file.

    Raises:
        BenchError: something else would be measured; every difference is named.
    """
    differences = [
        f"{field.name} was {before!r} and is {now!r}"
        for field in dataclasses.fields(Subject)
        for before, now in [(getattr(old, field.name), getattr(new, field.name))]
        if before != now
    ]
    if differences:
        raise BenchError(
            f"the results to resume are of another measurement ({'; '.join(differences)}): "
            "take the same options, or start a new file"
        )
