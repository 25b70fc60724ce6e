"""The built-in prompts, and those of a file."""

from collections import Counter
from pathlib import Path

import pytest

from engine.experiment.arm import ExperimentError
from engine.experiment.prompts import draw, read_set, read_sets


@pytest.mark.parametrize("name", ["grounded", "chat"])
def test_a_built_in_set_has_24_different_prompts_or_more(name: str) -> None:
    prompts = read_set(name)
    assert len({prompt.text for prompt in prompts}) == len(prompts) >= 24
    assert len({prompt.name for prompt in prompts}) == len(prompts)
    assert {prompt.set_name for prompt in prompts} == {name}


@pytest.mark.parametrize("name", ["grounded", "chat"])
def test_the_tasks_of_a_built_in_set_have_equal_shares(name: str) -> None:
    tasks = Counter(prompt.name.split("-")[0] for prompt in read_set(name))
    assert len(set(tasks.values())) == 1


def test_the_same_seed_draws_the_same_prompts_in_the_order_of_the_set() -> None:
    prompts = read_set("chat")
    drawn = draw(prompts, 6, seed=1)
    assert drawn == draw(prompts, 6, seed=1)
    assert [prompts.index(prompt) for prompt in drawn] == sorted(map(prompts.index, drawn))
    assert drawn != draw(prompts, 6, seed=2)


def test_a_file_has_a_prompt_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": " Hello "}\n', encoding="utf-8")
    assert [(prompt.set_name, prompt.text) for prompt in read_set(str(path))] == [("mine", "Hello")]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes('{"prompt": "a\u2028b\u0085c"}\r\n{"prompt": "d"}\n'.encode())
    assert [prompt.text for prompt in read_set(str(path))] == ["a\u2028b\u0085c", "d"]


def test_a_line_without_a_text_is_named_with_the_keys_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"answer": "b", "prompt": 3}\n', encoding="utf-8")
    with pytest.raises(ExperimentError, match="line 3 contains no text"):
        read_set(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "no prompts"), ("\n \n", "no prompts"), ("{", "line 1 is not JSON"), ("[1]", "no text"),
     ("[" * 100_000, "not JSON"), ("\udcff", "cannot be read")],
)  # fmt: skip
def test_what_is_no_jsonl_is_refused_with_the_line(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ExperimentError, match=message):
        read_set(str(path))


def test_prompts_with_one_id_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}\n', encoding="utf-8")
    assert [prompt.name for prompt in read_set(str(path))] == ["1-1", "2-1"]


def test_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text('{"prompt": "Name three rivers."}\n')
    with pytest.raises(ExperimentError, match="have the same name"):
        read_sets(("chat", str(path)), 3, seed=1)
