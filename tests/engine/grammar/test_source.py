"""A schema or grammar is refused with a reason before any model is loaded."""

from pathlib import Path

import pytest

from engine.configuration import SamplingSettings
from engine.grammar.source import GrammarError, check_grammar, grammar_of, read_grammar
from engine.requests import Grammar

YES_OR_NO = 'root ::= "yes" | "no"\n'


@pytest.mark.parametrize(
    ("text", "is_schema"),
    [
        ('{"type": "object", "properties": {"age": {"type": "integer"}}}', True),
        (YES_OR_NO, False),
        ('start: "yes" | "no"\n', False),
        ('root ::= start "."\nstart ::= "yes" | "no"\n', False),
        ('root ::= item+\nitem ::= "- " [^\\n]+ "\\n"\n', False),
    ],
)
def test_a_schema_and_both_kinds_of_grammar_are_taken(text: str, is_schema: bool) -> None:
    check_grammar(Grammar(text, is_schema=is_schema))


@pytest.mark.parametrize(
    ("text", "is_schema", "reason"),
    [
        ('{"type": "object",\n "properties": }', True, "line 2"),
        ("[1, 2]", True, "is a list"),
        ("false", True, "is a bool"),
        ('{"type": "colour"}', True, "colour"),
        ('{"type": "integer", "minimum": 5, "maximum": 1}', True, "atisf"),
        ('{"type": "string", "contentMediaType": 7, "not": {}}', True, "not"),
        ('root ::= "yes"\nbad line', False, "line 2"),
        ('root ::= word\nnoun ::= "cat"', False, "'word' not found at line 1"),
        ('word ::= "cat"', False, "root"),
        ('start: word\nword: "a" unknown_thing', False, "unknown_thing"),
        ('start: "a"\nother: [', False, "2"),
        ("root ::= " + "(" * 5000, False, "nested too deep"),
    ],
)
def test_a_fault_is_reported_with_its_place(text: str, is_schema: bool, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        check_grammar(Grammar(text, is_schema=is_schema, name="mine"))


def test_the_file_that_the_settings_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "answer.gbnf"
    path.write_text(YES_OR_NO)
    found = grammar_of(SamplingSettings(grammar=str(path)))
    assert found == Grammar(YES_OR_NO, is_schema=False, name="answer.gbnf")
    assert grammar_of(SamplingSettings()) is None


def test_a_file_that_cannot_be_read_or_a_second_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GrammarError, match=r"gone\.json cannot be read"):
        read_grammar(tmp_path / "gone.json", is_schema=True)
    binary = tmp_path / "binary.gbnf"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GrammarError, match="cannot be read"):
        read_grammar(binary, is_schema=False)
    with pytest.raises(GrammarError, match="remove one"):
        grammar_of(SamplingSettings(json_schema="a.json", grammar="b.gbnf"))
