"""What others wrote, within bounds."""

from collections.abc import Callable

import pytest

from engine.parsing import MAX_DEPTH, MAX_KEY_PARTS, natural_key, parse_json, parse_toml

READERS = [parse_json, lambda text: parse_toml(f"a = {text}")]


@pytest.mark.parametrize("read", READERS, ids=["json", "toml"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 5000 + "]" * 5000, "nested deeper"),
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, "nested deeper"),
        ("9" * 5000, "64 bits"),
        ("-18446744073709551616", "64 bits"),
        ("1e400", "not a finite number"),
    ],
)
def test_what_cannot_be_computed_with_is_refused(
    read: Callable[[str], object], text: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        read(text)


@pytest.mark.parametrize("text", ["NaN", '"\\ud800"', '{"\\udfff": 1}'])
def test_json_that_cannot_be_written_again_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a finite number|surrogate pair"):
        parse_json(text)


def test_a_key_of_many_parts_is_refused_however_it_is_written() -> None:
    for part in ("a", '"a"', "'a'", ' "a#" '):
        for form in ("{} = 1", "[{}]", "x = [{{{} = 1}}]", 'y = """\n"""\n{} = 1'):
            with pytest.raises(ValueError, match=f"more than {MAX_KEY_PARTS} parts"):
                parse_toml(form.format(".".join([part] * (MAX_KEY_PARTS + 1))))


def test_dots_in_texts_and_comments_part_no_key() -> None:
    dots = "a." * 100
    for text in (f'"{dots}"', f"'{dots}'", f'"""\n{dots}"""', f"'''\n{dots}'''", f"1 # {dots}"):
        assert "x" in parse_toml(f"x = {text}")


def test_numbers_in_names_are_ordered_by_their_value() -> None:
    names = ["12b", "B4", "b²", "b12", "b4.5", "b4", "9b"]
    assert sorted(names, key=natural_key) == ["9b", "12b", "B4", "b4", "b4.5", "b12", "b²"]
