"""The store of plans: saved plans come back, and other files are reported and left alone."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from engine.configuration import KVTypes
from engine.files import RECORDS_BYTES
from engine.policy.plans import (
    PlanError,
    PlanStore,
    is_due,
    plan_name,
    read_plan,
)
from engine.quality.records import Report
from tests.engine.policy.reports import Q4, Q8, SUBJECT, report

NOW = datetime(2026, 11, 22, 18, 0, tzinfo=UTC)
BUILD, MODEL = SUBJECT.build, SUBJECT.model_identity


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(tmp_path / "quality")


def saved(store: PlanStore, found: Report | None = None, now: datetime = NOW) -> Path:
    found = replace(found or report({Q8: 0.001}, {Q8: 90.0}), started=now.isoformat())
    store.save(found)
    return store.folder / f"{plan_name(found.subject)}.json"


def test_a_saved_plan_is_read_unchanged(store: PlanStore) -> None:
    path = saved(store)
    [plan] = store.find(MODEL, BUILD).plans
    assert plan == read_plan(path)
    assert plan == report({Q8: 0.001}, {Q8: 90.0})
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_plan_is_due_after_the_interval_and_never_without_one(store: PlanStore) -> None:
    plan = read_plan(saved(store))
    assert not is_due(plan, NOW + timedelta(days=29), 30)
    assert is_due(plan, NOW + timedelta(days=31), 30)
    assert not is_due(plan, NOW + timedelta(days=3100), 0)


def test_one_kind_measured_again_leaves_the_others_as_they_were(store: PlanStore) -> None:
    saved(store, report({Q8: 0.001, Q4: 0.01}, {Q8: 90.0}))
    saved(store, report({Q8: 0.002}, {Q8: 80.0}), NOW + timedelta(days=31))
    [plan] = store.find(MODEL, BUILD).plans
    assert is_due(plan, NOW + timedelta(days=31), 30), "q4_0 was not measured again"
    assert [str(each.kind) for each in plan.candidates] == ["q8_0", "q4_0"]
    assert plan.candidates[0].scores.kl_mean.value == 0.002


def test_a_run_that_was_stopped_takes_nothing_from_a_whole_one(store: PlanStore) -> None:
    whole = report({Q8: 0.001}, {Q8: 90.0})
    saved(store, whole)
    rows = tuple(replace(each, is_complete=False) for each in report({Q8: 0.4}).measurements)
    saved(store, replace(whole, measurements=rows))
    assert store.find(MODEL, BUILD).plans[0].measurements == whole.measurements


def test_every_fact_of_the_subject_but_the_file_s_name_makes_a_plan_of_its_own() -> None:
    changes: list[dict[str, object]] = [
        {"model_identity": "f" * 32}, {"texts_digest": "f" * 32}, {"build": "x"}, {"device": "x"},
        {"n_threads": 3}, {"n_ctx": 3}, {"n_chunk": 3}, {"reference": KVTypes("bf16", "bf16")},
        {"settings": {}},
    ]  # fmt: skip
    names = {plan_name(replace(SUBJECT, **each)) for each in changes}  # type: ignore[arg-type]  # by name
    assert len({*names, plan_name(SUBJECT)}) == len(changes) + 1
    assert plan_name(replace(SUBJECT, model="renamed.gguf")) == plan_name(SUBJECT)


def test_plans_of_another_build_are_not_used_and_named(store: PlanStore) -> None:
    saved(store)
    found = store.find(MODEL, "0.4.0@2")
    assert found.plans == ()
    [problem] = found.problems
    assert BUILD in problem
    assert "measure again" in problem


def damaged(path: Path) -> list[tuple[bytes, str]]:
    whole = path.read_bytes()
    data = json.loads(whole)
    return [
        (b"", "not a readable measurement"),
        (whole[: len(whole) // 2], "not a readable measurement"),
        (b"\xff\xfe not text", "not a readable measurement"),
        (b"[1, 2]", "schema None"),
        (json.dumps(data | {"schema": 3}).encode(), "schema 3"),
        (json.dumps(data | {"more": 1}).encode(), "at more"),
        (json.dumps(data | {"started": "yesterday"}).encode(), "not a readable measurement"),
        (json.dumps(data | {"started": "2026-11-22T18:00:00"}).encode(), "no UTC offset"),
        (whole.replace(b"0.001", b"NaN", 1), "not a readable measurement"),
        (b" " * (RECORDS_BYTES + 1), "not a readable measurement"),
    ]


@pytest.mark.parametrize("number", range(10))
def test_a_damaged_plan_is_reported_not_used_and_left_as_it_is(
    store: PlanStore, number: int
) -> None:
    path = saved(store)
    content, message = damaged(path)[number]
    path.write_bytes(content)
    found = store.find(MODEL, BUILD)
    assert found.plans == ()
    [problem] = found.problems
    assert str(path) in problem
    assert message in problem
    assert path.read_bytes() == content


def test_a_plan_under_a_foreign_name_is_not_used(store: PlanStore) -> None:
    path = saved(store)
    foreign = path.with_name(f"{MODEL}-{'0' * 16}.json")
    path.rename(foreign)
    [problem] = store.find(MODEL, BUILD).problems
    assert "different measurements" in problem
    assert foreign.exists()


def test_a_damaged_plan_is_not_written_over_by_a_new_one(store: PlanStore) -> None:
    path = saved(store)
    path.write_bytes(b"mine")
    saved(store)
    assert path.read_bytes() == b"mine"
    found = store.find(MODEL, BUILD)
    assert (len(found.plans), len(found.problems)) == (1, 1)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    found = report({Q8: 0.001})
    with pytest.raises(PlanError, match="cannot be written"):
        PlanStore(blocked).save(found)


def test_a_measurement_without_speeds_keeps_those_of_before(store: PlanStore) -> None:
    saved(store, report({Q8: 0.001}, {Q8: 90.0}))
    saved(store, report({Q8: 0.002}, {Q8: None}), NOW + timedelta(days=1))
    [plan] = store.find(MODEL, BUILD).plans
    found = plan.candidates[0]
    assert found.scores.kl_mean.value == 0.002
    assert found.cost is not None
    assert found.cost.shallow_tps == 90.0
