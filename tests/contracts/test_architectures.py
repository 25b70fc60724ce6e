"""Each architecture is one row, whose fields all count and belong together."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.model.architectures import FAMILIES, Family

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
        ("recurrent", row.rolls_back, row.recurrent or row.indexer),
        ("state", row.keeps_first_values, row.state == "rwkv"),
        ("indexer", row.indexer_layers != "named" or row.needs_top_k, row.indexer),
        ("window", row.sharing, row.window),
    )
    return (name for name, is_named, other in pairs if is_named and not other)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_row_forgets_no_field_that_another_one_wants(name: str) -> None:
    assert list(forgotten(FAMILIES[name])) == []


def test_a_forgotten_field_is_named() -> None:
    assert list(forgotten(Family(recurrent="by interval", indexer_layers="all"))) == [
        "state", "interval", "indexer",
    ]  # fmt: skip
