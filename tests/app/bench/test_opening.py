"""From options to prompts and policies."""

from dataclasses import replace

import pytest

from app.bench.errors import BenchError
from app.bench.opening import Asked, check_policies, chosen_policies, read_prompts
from engine.configuration import ControllerName

ASKED = Asked(
    sets=("grounded", "chat"),
    n_prompts=3,
    only=(),
    n_pairs=1,
    n_tokens=8,
    temperatures=(0.0,),
    seed=1,
    predictors=(),
    controllers=(ControllerName.AUTO, ControllerName.FIXED),
    lengths=(2, 4),
    policies=(),
)
READERS = ("off", "lookup", "suffix", "combined")


def names(asked: Asked, available: tuple[str, ...] = READERS) -> list[str]:
    return [policy.name for policy in chosen_policies(asked, available)]


def test_without_a_choice_everything_runs_that_the_model_can_use() -> None:
    assert names(ASKED) == [
        "combined:auto", "lookup:fixed:2", "lookup:fixed:4", "suffix:fixed:2", "suffix:fixed:4",
        "combined:fixed:2", "combined:fixed:4",
    ]  # fmt: skip
    assert "draft:fixed:2" in names(ASKED, (*READERS, "draft"))


def test_named_policies_run_instead_of_the_grid() -> None:
    assert names(replace(ASKED, policies=("lookup:band", "lookup:band"))) == ["lookup:band"]


def test_what_the_model_cannot_use_is_refused_with_what_it_can() -> None:
    with pytest.raises(BenchError, match=r"draft cannot be used .* lookup, suffix, combined"):
        names(replace(ASKED, policies=("draft:auto",)))
    with pytest.raises(BenchError, match="it can use none"):
        names(replace(ASKED, predictors=("lookup",)), ("off",))
    with pytest.raises(BenchError, match="nothing to compare"):
        names(ASKED, ("off",))


def test_bad_policies_are_found_before_a_model_is_loaded() -> None:
    check_policies(ASKED)
    with pytest.raises(BenchError, match="luck"):
        check_policies(replace(ASKED, predictors=("luck",)))


def test_every_set_gives_as_many_prompts() -> None:
    assert [len(prompts) for prompts in read_prompts(ASKED)] == [3, 3]


def test_prompts_can_be_chosen_by_name() -> None:
    asked = replace(ASKED, only=("story-05", "edit-order"))
    assert [[each.name for each in prompts] for prompts in read_prompts(asked)] == [
        ["edit-order"], ["story-05"],
    ]  # fmt: skip
    with pytest.raises(BenchError, match="story-99"):
        read_prompts(replace(ASKED, only=("story-99",)))


def test_a_set_named_twice_runs_once() -> None:
    assert len(read_prompts(replace(ASKED, sets=("chat", "chat")))) == 1
