"""Rows of a device, what-ifs and knobs as lines."""

from dataclasses import replace
from pathlib import Path

import pytest

import app
from app.render.lines import plain, width_of
from app.render.plan import device_lines, mark, memory_bar, size_range, source_text
from app.render.plan_changes import (
    KnobState,
    advice_line,
    arrow_lines,
    delta_text,
    effect_lines,
    gain_text,
    knob_sheet,
)
from engine.memory.hardware import Device
from engine.memory.terms import DeviceEstimate, Source, Term, TermKind
from engine.memory.units import GIB, MIB
from engine.planning.knobs import KNOBS
from engine.planning.verdict import FitVerdict
from engine.planning.what_if import Arrows, Effect, what_ifs
from tests.engine.planning.models import DENSE, planned


def test_an_estimate_shows_its_range_and_an_exact_number_its_word() -> None:
    assert source_text(Term(100 * MIB, Source.ESTIMATED, "", (80 * MIB, 120 * MIB))) == (
        "~ 80\N{EN DASH}120 MiB"
    )
    assert source_text(Term(100 * MIB, Source.ESTIMATED)) == "~ estimated"
    assert source_text(Term(100 * MIB, Source.EXACT)) == "= exact"
    assert source_text(Term(100 * MIB, Source.MEASURED)) == "* measured"


def test_a_range_over_two_units_names_both() -> None:
    assert size_range(900 * MIB, 2 * GIB) == "900 MiB\N{EN DASH}2 GiB"


def test_every_kind_of_term_has_a_sign_a_colour_and_a_row() -> None:
    terms = {kind: Term(GIB, Source.EXACT) for kind in TermKind}
    device = DeviceEstimate(Device("GPU 0", "gpu", 24 * GIB, 24 * GIB), terms)
    bar = memory_bar(device, 96, "block")
    assert len({run.text[0] for run in bar}) == len({run.style for run in bar}) == len(terms) + 1
    assert len({mark(kind, "ascii").text for kind in TermKind}) == len(TermKind)
    inks = (Path(app.__file__).parent / "styles/inks.tcss").read_text()
    assert all(f".ink--{run.style} " in inks for run in bar)
    plan, _ = planned(DENSE, 12)
    text = "\n".join(map(plain, device_lines(plan, device, 60, "block")))
    for kind in TermKind:
        assert ("KV cache" if kind is TermKind.KV else str(kind)) in text


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "±0"), (-512 * MIB, "−512 MiB"), (3 * GIB // 2, "+1.5 GiB")]  # noqa: RUF001
)  # fmt: skip
def test_a_difference_of_memory_has_its_sign(nbytes: int, text: str) -> None:
    assert delta_text(nbytes) == text


@pytest.mark.parametrize(
    ("n_ctx", "text"), [(0, ""), (768, "+768"), (5632, "+5.5k"), (14336, "+14k"), (-2048, "−2.0k")]  # noqa: RUF001
)  # fmt: skip
def test_a_difference_of_context_has_its_sign(n_ctx: int, text: str) -> None:
    assert gain_text(n_ctx) == text


def test_arrows_and_effects_fit_into_the_narrow_panels() -> None:
    plan, _ = planned(DENSE, 12)
    effect = Effect("131,072 and more", plan.setup, -123 * GIB, 131072, FitVerdict.TIGHT)
    for line in (*arrow_lines(Arrows(effect, effect), 30), *effect_lines((effect,), 42)):
        assert width_of(line) <= 42
    left, right = arrow_lines(Arrows(None, effect), 30)
    assert plain(left) == "◂ no further"
    assert plain(right).startswith("▸ 131,072…")
    assert plain(right).endswith("+128k !")
    assert effect_lines((), 42) == []


def test_the_advice_is_a_change_that_makes_the_plan_fit() -> None:
    plan, planner = planned("qwen3-30b-a3b", 16)
    found = what_ifs(plan, planner, planner.facts_of(plan.setup))
    assert plain(advice_line(found, FitVerdict.NO)).startswith("fits with experts of ")
    assert advice_line(found, FitVerdict.FITS) == ()
    assert advice_line((replace(found[0], verdict=FitVerdict.NO),), FitVerdict.NO) == ()
    assert advice_line((), FitVerdict.NO) == ()


def test_knobs_scroll_so_that_the_chosen_one_is_in_sight_with_its_help() -> None:
    plan, planner = planned(DENSE, 12)
    facts = planner.facts_of(plan.setup)
    first = 0
    for selected in (*range(len(KNOBS)), *reversed(range(len(KNOBS)))):
        state = KnobState(selected, first=first)
        sheet = knob_sheet(KNOBS, plan.setup, facts, state, 30, 20)
        first = sheet.first
        places = [line.index for line in sheet.lines]
        assert selected in places
        assert len(sheet.lines) == 20
        n_rows = len([place for place in places if place is not None])
        assert sheet.n_above + n_rows + sheet.n_below == len(KNOBS)
        assert max(width_of(line.line) for line in sheet.lines) <= 30
    assert (sheet.n_above, sheet.first) == (0, 0)


def test_memory_that_gpus_share_is_a_part_of_the_bar_and_a_row() -> None:
    plan, _ = planned(DENSE, 12)
    terms = {TermKind.OVERHEAD: Term(GIB, Source.EXACT)}
    device = DeviceEstimate(Device("CPU", "cpu", 32 * GIB, 32 * GIB), terms, 15 * GIB)
    shares = {run.style: len(run.text) for run in memory_bar(device, 64, "block")}
    assert shares == {"mem-overhead": 2, "mem-shared": 30, "mem-free": 32}
    text = "\n".join(map(plain, device_lines(plan, device, 60, "block")))
    assert "16 GiB of 32 GiB" in text
    assert "on GPU" in text


def test_an_idle_knob_is_dim_without_arrows_and_says_why() -> None:
    plan, planner = planned(DENSE, 12)
    facts = planner.facts_of(plan.setup)
    place = [knob.name for knob in KNOBS].index("n_cpu_moe")
    sheet = knob_sheet(KNOBS, plan.setup, facts, KnobState(place), 40, 40)
    row = next(line.line for line in sheet.lines if line.index == place)
    assert "◂" not in plain(row)
    assert any("idle: this model has no experts" in plain(line.line) for line in sheet.lines)
    alone = next(knob for knob in KNOBS if knob.name == "kv_unified")
    several = replace(plan.setup.configuration, n_slots=2)
    assert alone.disabled_reason(plan.setup, facts) == "one slot shares with nobody"
    assert alone.disabled_reason(replace(plan.setup, configuration=several), facts) == ""
