"""Each architecture is one row, whose fields all count and belong together."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from engine.model.architectures import FAMILIES, Family, family_of

ENGINE = Path(__file__).parents[2] / "engine"
PLAIN = Family()


def forgotten(row: Family) -> Iterator[str]:
    """The fields that a row lacks beside those that it has."""
    pairs = (
        ("state", row.recurrent, row.state),
        ("recurrent", row.state, row.recurrent),
        ("interval", row.recurrent == "by interval", row.interval),
        ("recurrent", row.interval, row.recurrent == "by interval"),
        ("recurrent", row.of_head != "attends", row.recurrent == "without heads"),
        ("recurrent", row.rolls_back or row.reads_states_early, row.recurrent or row.indexer),
        ("state", not row.has_cuda_scan, row.state in ("mamba", "mamba2")),
        ("state", row.keeps_first_values, row.state == "rwkv"),
        ("indexer", row.indexer_layers != "named" or row.needs_top_k, row.indexer),
        ("window", row.sharing, row.window),
    )
    return (name for name, is_said, other in pairs if is_said and not other)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_row_forgets_no_field_that_another_one_wants(name: str) -> None:
    assert list(forgotten(FAMILIES[name])) == []


def test_a_forgotten_field_is_named() -> None:
    assert list(forgotten(Family(recurrent="by interval", indexer_layers="all"))) == [
        "state", "interval", "indexer",
    ]  # fmt: skip


@pytest.mark.parametrize("field", [field.name for field in fields(Family)])
def test_every_field_is_said_by_a_row_and_read_by_the_engine(field: str) -> None:
    rows = [*FAMILIES.values(), family_of("unknown")]
    assert any(getattr(row, field) != getattr(PLAIN, field) for row in rows)
    reading = re.compile(rf"\.{field}\b")
    sources = (path for path in ENGINE.rglob("*.py") if path.name != "architectures.py")
    assert any(reading.search(path.read_text(encoding="utf-8")) for path in sources)


def test_no_other_module_asks_for_an_architecture_by_its_name() -> None:
    names = "|".join(map(re.escape, FAMILIES))
    asking = re.compile(rf'\.(name|architecture) (==|!=|in|not in) \(?"({names})"')
    for package in ("model", "memory"):
        for path in (ENGINE / package).glob("*.py"):
            assert not asking.search(path.read_text(encoding="utf-8")), path
