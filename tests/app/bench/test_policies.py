"""What is compared, by name and by grid."""

from dataclasses import replace

import pytest

from app.bench.policies import Policy, PolicyChoice, make_policies, parse_policy
from app.bench.results import BenchError
from engine.configuration import ControllerName, PredictorName, SpeculationSettings

LOOKUP, SUFFIX, COMBINED = PredictorName.LOOKUP, PredictorName.SUFFIX, PredictorName.COMBINED
AUTO, FIXED = ControllerName.AUTO, ControllerName.FIXED
CHOICE = PolicyChoice(lengths=(2, 4))
READERS = ("off", "lookup", "suffix", "combined")


def names(policies: tuple[Policy, ...]) -> list[str]:
    return [policy.name for policy in policies]


def test_what_is_named_twice_runs_once() -> None:
    assert names(make_policies([LOOKUP, LOOKUP], [AUTO, FIXED, AUTO], [3, 3])) == [
        "lookup:auto", "lookup:fixed:3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["combined:auto", "lookup:fixed:4", "suffix:auto"],
)
def test_a_policy_is_read_from_its_own_name(text: str) -> None:
    assert parse_policy(text).name == text


@pytest.mark.parametrize(
    "text",
    ["", "lookup", "lookup:fixed", "lookup:auto:3", "lookup:fixed:17", "lookup:fixed:0",
     "lookup:fixed:x", "luck:auto", "off:auto", "lookup:fixed:3:4",
     "custom:auto", "custom::auto", "mtp:auto"],
)  # fmt: skip
def test_what_is_no_policy_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(BenchError):
        parse_policy(text)


def test_a_policy_changes_only_what_it_names() -> None:
    base = SpeculationSettings(n_draft=5, lookup_pattern_min=7, verification="match")
    fixed = Policy(SUFFIX, FIXED, 2).settings(base)
    assert (fixed.predictor, fixed.controller, fixed.n_draft) == (SUFFIX, FIXED, 2)
    assert (fixed.lookup_pattern_min, fixed.verification) == (7, "match")
    assert Policy(SUFFIX, AUTO).settings(base).n_draft == 5


def names_with(choice: PolicyChoice, available: tuple[str, ...] = READERS) -> list[str]:
    return [policy.name for policy in choice.of_model(available)]


def test_without_a_choice_everything_runs_that_the_model_can_use() -> None:
    assert names_with(CHOICE) == [
        "combined:auto", "lookup:fixed:2", "lookup:fixed:4", "suffix:fixed:2", "suffix:fixed:4",
        "combined:fixed:2", "combined:fixed:4",
    ]  # fmt: skip
    assert "draft:fixed:2" in names_with(CHOICE, (*READERS, "draft"))


def test_named_policies_run_instead_of_the_grid() -> None:
    assert names_with(replace(CHOICE, policies=("lookup:auto", "lookup:auto"))) == ["lookup:auto"]


def test_what_the_model_cannot_use_is_refused_with_what_it_can() -> None:
    with pytest.raises(BenchError, match=r"draft cannot be used .* lookup, suffix, combined"):
        names_with(replace(CHOICE, policies=("draft:auto",)))
    with pytest.raises(BenchError, match="it can use none"):
        names_with(replace(CHOICE, predictors=("lookup",)), ("off",))
    with pytest.raises(BenchError, match="nothing to compare"):
        names_with(CHOICE, ("off",))
