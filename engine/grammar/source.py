"""Schemas and grammars as people write them: read, checked, and put into llguidance's words.

A grammar is GBNF, as llama.cpp reads it, or Lark, as llguidance does
(https://github.com/guidance-ai/llguidance, docs/syntax.md); a text with a rule `start:` or a line
`%llguidance` is Lark. A schema is JSON Schema as far as llguidance knows it: what it does not know
is an error and never passed over.
"""

import re
from pathlib import Path

from engine.configuration import SamplingSettings
from engine.errors import EngineError
from engine.files import SETTINGS_BYTES, expanded, read_text
from engine.parsing import parse_json
from engine.requests import Grammar

WHITE_SPACE = r"(\n[ \t]{0,40}| )?"
"""Between the parts of a JSON text: a blank, or a line's end and what indents the next one. More
of it would let a small model write nothing else."""
SCHEMA_SUFFIX = ".json"
LARK_SUFFIX = ".lark"

_LARK_LINE = re.compile(r"at line (\d+)")
_UNKNOWN_RULE = re.compile(r"Rule '([^']+)' not found")
_START = re.compile(
    r"""("(?:\\.|[^"\\])*(?:"|\\?\Z)|\[(?:\\.|[^\]\\])*(?:\]|\\?\Z)|\#[^\n]*)|"""
    r"(?<![\w-])start(?![\w-])",
    re.DOTALL,
)
"""The name `start`, or first what it is no name in: a text, a set of characters, a comment.

What is not closed reaches to the end, so that nothing is looked at twice.
"""


class GrammarError(EngineError):
    """A schema or a grammar that cannot be used, or a reply that cannot go on under it."""

    title = "The grammar cannot be used"


def grammar_of(sampling: SamplingSettings) -> Grammar | None:
    """The schema or grammar whose file the settings name; None where they name none.

    Raises:
        GrammarError: both are named, the file cannot be read, or it holds neither.
    """
    if sampling.json_schema and sampling.grammar:
        raise GrammarError(
            f"both a JSON schema ({sampling.json_schema}) and a grammar ({sampling.grammar}) "
            "are set: remove one"
        )
    if sampling.json_schema:
        return read_grammar(Path(sampling.json_schema), is_schema=True)
    return read_grammar(Path(sampling.grammar), is_schema=False) if sampling.grammar else None


def read_grammar(path: Path, *, is_schema: bool) -> Grammar:
    """The schema or grammar in a file.

    Raises:
        GrammarError: it cannot be read, or is not valid; the message has the line where one is
            known.
    """
    try:
        text = read_text(expanded(path), limit=SETTINGS_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise GrammarError(f"{path} cannot be read: {error}") from error
    grammar = Grammar(text, is_schema=is_schema, name=path.name)
    check_grammar(grammar)
    return grammar


def check_grammar(grammar: Grammar) -> None:
    """Make sure that llguidance takes a schema or grammar, without any model.

    Raises:
        GrammarError: it is not valid, or no text satisfies it.
    """
    from llguidance import LLMatcher  # a command without a grammar starts without it

    said = LLMatcher.validate_grammar(definition(grammar), None)
    if said and not said.startswith("WARNING"):
        raise refusal_of(grammar, said)


def definition(grammar: Grammar) -> str:
    """The schema or grammar in the form that llguidance compiles.

    Raises:
        GrammarError: it is no JSON, or no GBNF; the message has the line.
    """
    return _of_schema(grammar) if grammar.is_schema else _of_grammar(grammar)


def refusal_of(grammar: Grammar, said: str) -> GrammarError:
    """What llguidance says of a schema or grammar, as an error with the lines of its own text."""
    first = next((line.strip() for line in said.splitlines() if line.strip()), "no reason given")
    kind = "JSON schema" if grammar.is_schema else "grammar"
    if not grammar.is_schema and not is_lark(grammar.text):
        first = _LARK_LINE.sub("in its Lark form, line \\1", first)
    return GrammarError(f"the {kind} {grammar.name} is not valid: {first}")


def is_lark(text: str) -> bool:
    """Whether a grammar is written in Lark, else it is GBNF."""
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


def _of_grammar(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_lark(
        grammar.text if is_lark(grammar.text) else _lark_of_gbnf(grammar)
    )


def _lark_of_gbnf(grammar: Grammar) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(_without_start(grammar.text))
    except RecursionError as error:
        raise GrammarError(f"the grammar {grammar.name} is nested too deeply") from error
    except Exception as error:  # the converter raises bare exceptions for what a user wrote
        said = _with_line(str(error), grammar.text)
        raise GrammarError(f"the grammar {grammar.name} is not valid GBNF: {said}") from error


def _without_start(gbnf: str) -> str:
    """GBNF whose rule `start` has a free name: in Lark it is the first rule, `root` in GBNF."""
    free = "start-0"
    while free in gbnf:
        free += "0"
    return _START.sub(lambda found: found[0] if found[1] else free, gbnf)


def _with_line(said: str, text: str) -> str:
    """What the converter says, with the first line that has a rule which is not there."""
    unknown = _UNKNOWN_RULE.fullmatch(said)
    if unknown is None:
        return said
    name = re.compile(rf"(?<![\w-]){re.escape(unknown[1])}(?![\w-])")
    lines = text.splitlines()
    line = next((n for n, line in enumerate(lines, 1) if name.search(line)), None)
    return said if line is None else f"{said} at line {line}"
