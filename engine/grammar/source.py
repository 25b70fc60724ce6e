"""Reads and validates JSON schemas and grammars, and converts them for llguidance.

A grammar is llama.cpp's GBNF or llguidance's Lark (https://github.com/guidance-ai/llguidance,
docs/syntax.md); a text with a rule `start:` or a line `%llguidance` is Lark. A schema may use the
part of JSON Schema that llguidance supports; other keywords are errors.
"""

import re
from pathlib import Path

from engine.configuration import SamplingSettings
from engine.errors import EngineError
from engine.files import SETTINGS_BYTES, expanded, read_text, reason_of
from engine.parsing import parse_json
from engine.requests import Grammar

WHITE_SPACE = r"(\n[ \t]{0,40}| )?"
"""Allowed between JSON tokens: a space, or a newline and indentation. With more, a small model may
write endless white space."""
SCHEMA_SUFFIX = ".json"
LARK_SUFFIX = ".lark"

_LARK_LINE = re.compile(r"at line (\d+)")
_UNKNOWN_RULE = re.compile(r"Rule '([^']+)' not found")
_START = re.compile(
    r"""("(?:\\.|[^"\\])*(?:"|\\?\Z)|\[(?:\\.|[^\]\\])*(?:\]|\\?\Z)|\#[^\n]*)|"""
    r"(?<![\w-])start(?![\w-])",
    re.DOTALL,
)
"""The name `start`, or (group 1) a string, character class or comment, where it is no name.

An unclosed string or class extends to the end, so the match is linear in time.
"""


class GrammarError(EngineError):
    """An unusable schema or grammar, or a reply that does not match it."""

    title = "The grammar cannot be used"


def grammar_of(sampling: SamplingSettings) -> Grammar | None:
    """The schema or grammar file of the settings; None if they name none.

    Raises:
        GrammarError: both are set, or the file cannot be read or is invalid.
    """
    if sampling.json_schema and sampling.grammar:
        raise GrammarError(
            f"both a JSON schema ({sampling.json_schema}) and a grammar ({sampling.grammar}) "
            "are set: remove one of the two"
        )
    if sampling.json_schema:
        return read_grammar(Path(sampling.json_schema), is_schema=True)
    return read_grammar(Path(sampling.grammar), is_schema=False) if sampling.grammar else None


def read_grammar(path: Path, *, is_schema: bool) -> Grammar:
    """The schema or grammar in a file.

    Raises:
        GrammarError: it cannot be read or is invalid; the message has the line if known.
    """
    try:
        text = read_text(expanded(path), limit=SETTINGS_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise GrammarError(f"{path} cannot be read: {reason_of(error)}") from error
    grammar = Grammar(text, is_schema=is_schema, name=path.name)
    check_grammar(grammar)
    return grammar


def check_grammar(grammar: Grammar) -> None:
    """Validate a schema or grammar with llguidance, without a model.

    Raises:
        GrammarError: it is invalid, or no text matches it.
    """
    from llguidance import LLMatcher  # a command without a grammar starts without it

    message = LLMatcher.validate_grammar(definition(grammar), None)
    if message and not message.startswith("WARNING"):
        raise refusal_of(grammar, message)


def definition(grammar: Grammar) -> str:
    """The schema or grammar in llguidance's form.

    Raises:
        GrammarError: it is not valid JSON or GBNF; the message has the line.
    """
    from llguidance import LLMatcher

    if grammar.is_schema:
        return _of_schema(grammar)
    text = grammar.text if is_lark(grammar.text) else _lark_of_gbnf(grammar)
    return LLMatcher.grammar_from_lark(text)


def refusal_of(grammar: Grammar, message: str) -> GrammarError:
    """Convert llguidance's message to an error that names the schema or grammar."""
    first = next((line.strip() for line in message.splitlines() if line.strip()), "no reason given")
    kind = "JSON schema" if grammar.is_schema else "grammar"
    if not grammar.is_schema and not is_lark(grammar.text):
        first = _LARK_LINE.sub("line \\1 of its translation to Lark", first)
    return GrammarError(f"the {kind} {grammar.name} is not valid: {first}")


def is_lark(text: str) -> bool:
    """Whether a grammar is Lark; otherwise it is GBNF."""
    return re.search(r"(?m)^\s*(%llguidance\b|start\s*:(?!:=))", text) is not None


def _of_schema(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    try:
        schema = parse_json(grammar.text)
    except ValueError as error:
        raise GrammarError(f"the JSON schema {grammar.name} is not valid JSON: {error}") from error
    if not isinstance(schema, dict):
        raise GrammarError(
            f"the JSON schema {grammar.name} is a {type(schema).__name__}: it must be an "
            'object such as {"type": "object"}'
        )
    return LLMatcher.grammar_from_json_schema(
        grammar.text, defaults={"whitespace_pattern": WHITE_SPACE}
    )


def _lark_of_gbnf(grammar: Grammar) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        free = "start-0"  # a rule `start` would be the root rule in Lark
        while free in grammar.text:
            free += "0"
        return gbnf_to_lark(_START.sub(lambda name: name[0] if name[1] else free, grammar.text))
    except RecursionError as error:
        raise GrammarError(f"the grammar {grammar.name} is nested too deeply") from error
    except Exception as error:  # the converter raises bare exceptions for invalid input
        message = _with_line(str(error), grammar.text)
        raise GrammarError(f"the grammar {grammar.name} is not valid GBNF: {message}") from error


def _with_line(message: str, text: str) -> str:
    """The converter's message; for an undefined rule with the first line that uses it."""
    unknown = _UNKNOWN_RULE.fullmatch(message)
    if unknown is None:
        return message
    name = re.compile(rf"(?<![\w-]){re.escape(unknown[1])}(?![\w-])")
    lines = text.splitlines()
    line = next((n for n, line in enumerate(lines, 1) if name.search(line)), None)
    return message if line is None else f"{message} at line {line}"
