"""Machines to plan for, as they are typed."""

from dataclasses import replace

import pytest

from engine.memory.units import GIB
from engine.planning.planner import Setup
from engine.planning.values import OptionError
from tests.engine.planning.models import DENSE, option_named, planned


def typed(name: str, setup: Setup, text: str) -> Setup:
    return option_named(name).parse(setup, text)


@pytest.mark.parametrize(
    ("text", "sizes", "cards"),
    [
        ("8GiB", (8 * GIB,), ()),
        ("24", (24 * GIB,), ()),
        ("2x24GiB", (24 * GIB, 24 * GIB), ()),
        ("8GiB + 12GiB", (8 * GIB, 12 * GIB), ()),
        ("rtx 4090", (), ("GeForce RTX 4090",)),
        ("4090", (), ("GeForce RTX 4090",)),
        ("2x RTX 3090", (), ("GeForce RTX 3090", "GeForce RTX 3090")),
        ("12GiB, 4090", (12 * GIB,), ("GeForce RTX 4090",)),
        ("found", (), ()),
    ],
)
def test_sizes_and_cards_are_distinguished(
    text: str, sizes: tuple[int, ...], cards: tuple[str, ...]
) -> None:
    plan, planner = planned(DENSE, 6)
    setup = typed("vram", plan.setup, text)
    assert (setup.machine.vram_bytes, setup.machine.cards) == (sizes, cards)
    assert typed("vram", setup, option_named("vram").format(setup)) == setup
    n_gpus = len(planner.facts_of(setup).gpus)
    assert n_gpus == len(sizes) + len(cards) or text == "found"
    assert setup.machine.n_named_gpus == len(sizes) + len(cards)


@pytest.mark.parametrize("text", ["0", "-1", "0GiB", "RTX 9999", "40x8GiB", "nonsense", "8GiB,"])
def test_what_is_no_machine_is_refused_in_words(text: str) -> None:
    plan, _ = planned(DENSE, 6)
    with pytest.raises(OptionError):
        typed("vram", plan.setup, text)


def test_a_split_that_suits_no_longer_goes_with_its_gpus() -> None:
    plan, _ = planned(DENSE, 8, 8)
    now = replace(plan.setup.configuration, tensor_split=(3.0, 1.0), main_gpu=1)
    setup = replace(plan.setup, configuration=now)
    alone = typed("vram", setup, "24").configuration
    assert (alone.tensor_split, alone.main_gpu) == ((), 0)
    assert typed("vram", setup, "24, 8").configuration == now
