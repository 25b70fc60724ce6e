"""Models to choose from, with verdicts; files beside a model; the search of the screen."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.render.lines import plain
from app.render.plan_lists import model_option_line
from engine.model.catalog import find_entry
from engine.model.library import ModelEntry
from engine.planning.fit import search_setup
from engine.planning.models import (
    ModelOption,
    catalog_options,
    fit_context,
    library_options,
    with_verdict,
)
from engine.planning.search import Goal
from engine.planning.verdict import FitVerdict
from tests.engine.planning.models import DENSE, EXPERTS, planned
from tests.support.gguf_files import header, write


def offer_of(name: str, *vram_gib: float) -> ModelOption:
    plan, planner = planned(DENSE, *vram_gib)
    return with_verdict(
        ModelOption(name, name, ()), find_entry(name).model(), fit_context(plan.setup, planner)
    )


@pytest.mark.parametrize(
    ("name", "vram_gib", "verdict", "spills"),
    [
        ("llama-3.2-1b", 8, FitVerdict.FITS, False),
        (DENSE, 6, FitVerdict.TIGHT, False),
        (EXPERTS, 8, FitVerdict.NO, True),
        ("deepseek-v3", 8, FitVerdict.NO, False),
    ],
)
def test_models_that_fit_are_tight_or_need_ram(
    name: str, vram_gib: float, verdict: FitVerdict, *, spills: bool
) -> None:
    found = offer_of(name, vram_gib)
    assert (found.verdict, found.spills) == (verdict, spills)


def test_every_model_of_the_catalogue_has_a_verdict_or_a_reason() -> None:
    plan, planner = planned(DENSE, 12)
    for offer in catalog_options("Q4_K_M", fit_context(plan.setup, planner), lambda _: ()):
        assert offer.verdict is not None or offer.problem, offer.name
        assert offer.key == f"{offer.name}:Q4_K_M"


def test_a_broken_file_is_listed_with_its_problem(tmp_path: Path) -> None:
    plan, planner = planned(DENSE, 12)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    entry = ModelEntry(path=broken, name="broken", nbytes=4)
    [offer] = library_options([entry], [("4 B",)], fit_context(plan.setup, planner))
    assert offer.problem
    assert offer.verdict is None
    assert "broken" in plain(model_option_line(offer, 80, is_now=False))


def test_the_search_leaves_memory_for_a_projector(tmp_path: Path) -> None:
    plan, planner = planned(DENSE, 8)
    path = write(
        tmp_path / "mmproj.gguf",
        header({"general.architecture": "clip"}, [("v.weight", (1024, 1024, 256), 0, 0)]),
        data_bytes=1024**3,
    )
    with_file = replace(
        plan.setup, configuration=replace(plan.setup.configuration, mmproj_path=path)
    )
    alone = search_setup(plan.setup, Goal.CONTEXT, planner).configuration
    beside = search_setup(with_file, Goal.CONTEXT, planner).configuration
    assert beside.n_ctx < alone.n_ctx
    assert planner.plan(with_file.with_configuration(beside)).fits
