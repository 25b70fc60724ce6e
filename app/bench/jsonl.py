"""Prompts from anybody's JSONL file: where the text stands in a line."""

from collections.abc import Mapping
from pathlib import Path

from app.bench.errors import BenchError
from engine.files import read_text
from engine.parsing import parse_json

PROMPTS_BYTES = 1 << 28

KEYS = ("prompt", "question", "turns", "messages", "conversations", "instruction", "text", "input")
"""Keys that may hold the text, tried in this order; `instruction` takes `input` along."""


def read_jsonl(path: Path) -> list[tuple[str, str]]:
    """Give name and text of every line that is not blank.

    Raises:
        BenchError: the file cannot be read or has no lines, or a line is not JSON or has no text;
            the message names the line and the keys that it has.
    """
    try:
        lines = read_text(path, limit=PROMPTS_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} cannot be read as prompts: {error}") from error
    prompts = [
        (_name(data, number), _text(data, f"{path.name}, line {number}"))
        for number, line in enumerate(lines, 1)
        if line.strip()
        for data in [_object(line, f"{path.name}, line {number}")]
    ]
    if not prompts:
        raise BenchError(f"{path} has no prompts: write one JSON object on each line")
    return prompts


def _object(line: str, where: str) -> Mapping[str, object]:
    try:
        data = parse_json(line)
    except ValueError as error:
        raise BenchError(f"{where} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BenchError(f"{where} is {type(data).__name__}: write an object with a key `prompt`")
    return data


def _name(data: Mapping[str, object], number: int) -> str:
    named = next((data[key] for key in ("id", "question_id", "task_id") if key in data), number)
    return str(named)


def _text(data: Mapping[str, object], where: str) -> str:
    for key in KEYS:
        text = _instruction(data) if key == "instruction" else first_text(data.get(key))
        if text:
            return text
    has = ", ".join(data) or "no key at all"
    raise BenchError(
        f"{where} has no text: it has {has}, and the text is looked for under {', '.join(KEYS)}"
    )


def _instruction(data: Mapping[str, object]) -> str:
    parts = [first_text(data.get(key)) for key in ("instruction", "input")]
    return "\n\n".join(part for part in parts if part) if parts[0] else ""


def first_text(value: object) -> str:
    """Give the text of a value: itself, or that of a list's first user turn; empty if none."""
    match value:
        case str():
            return value.strip()
        case list():
            return next((text for each in value if (text := _turn(each))), "")
        case _:
            return ""


def _turn(value: object) -> str:
    """Give what a person says in one turn, in the spellings of OpenAI and ShareGPT."""
    match value:
        case str():
            return value.strip()
        case {"role": "user", "content": content} | {"from": "human", "value": content}:
            return first_text(content)
        case {"type": "text", "text": str(text)}:
            return text.strip()
        case _:
            return ""
