"""Rows of a device, what-ifs and knobs as lines."""

from pathlib import Path

import app
from app.render.lines import plain, width_of
from app.render.plan import device_lines, mark, memory_bar
from app.render.plan_changes import (
    KnobState,
    knob_sheet,
)
from engine.memory.hardware import Device
from engine.memory.terms import DeviceEstimate, Source, Term, TermKind
from engine.memory.units import GIB
from engine.planning.knobs import KNOBS
from tests.engine.planning.models import DENSE, planned


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
