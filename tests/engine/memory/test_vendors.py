"""What is true of CUDA is planned for NVIDIA's cards, and for those alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.cards import find_card
from engine.memory.estimate import Estimate, estimate
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from engine.model.architecture import Model, read_model
from engine.planning.search import Goal, SearchLimits, search

CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)
NVIDIA, OTHERS = "RTX 3090", ("M4 Max 64GB", "RX 7900 XTX", "Arc A770")


@pytest.fixture
def model(starter_path: Path) -> Model:
    return read_model(starter_path)


@pytest.fixture
def headed(model: Model) -> Model:
    """The starter with heads that CUDA has no kernel for."""
    layers = {i: replace(layer, k_head_dim=48) for i, layer in model.architecture.layers.items()}
    return replace(model, architecture=replace(model.architecture, layers=layers))


def planned(model: Model, card: str, **changes: object) -> Estimate:
    now = replace(Configuration(model.file.path, 4096, n_gpu_layers=-1), **changes)  # type: ignore[arg-type]  # plain values
    return estimate(model, now, (find_card(card).device(), CPU))


def words_of(found: Estimate) -> str:
    notes = [term.note for each in found.devices for term in each.terms.values()]
    return " ".join((*notes, *found.warnings))


@pytest.mark.parametrize("card", OTHERS)
@pytest.mark.parametrize("types", [("iq4_nl", "iq4_nl"), ("q8_0", "q4_0"), ("f16", "f16")])
def test_a_plan_for_another_makers_card_has_no_warning_about_cuda(
    headed: Model, card: str, types: tuple[str, str]
) -> None:
    changes = {"type_k": types[0], "type_v": types[1], "flash_attention": "on"}
    assert "CUDA" in words_of(planned(headed, NVIDIA, **changes))
    assert "CUDA" not in words_of(planned(headed, card, **changes))


def test_a_drivers_share_is_that_of_the_maker(model: Model) -> None:
    def driver(card: str) -> tuple[int, tuple[int, int]]:
        term = planned(model, card).devices[0].term(TermKind.OVERHEAD)
        return term.nbytes // MIB, term.range

    assert driver(NVIDIA)[0] == 300
    assert driver("M4 Max 64GB") == (0, (0, 0))
    for card in ("RX 7900 XTX", "RX 9070 XT", "Arc A770"):
        nbytes, (least, most) = driver(card)
        assert least <= 254 * MIB <= nbytes * MIB <= 313 * MIB <= most


@pytest.mark.parametrize("card", OTHERS)
def test_quantised_caches_are_chosen_where_no_cuda_is(headed: Model, card: str) -> None:
    def type_k(name: str) -> str:
        devices, limits = (find_card(name).device(), CPU), SearchLimits(cache_bytes=100 * MIB)
        found = search(
            headed, devices, Goal.CONTEXT, target="kvchat", margin_bytes=0, limits=limits
        )
        return found.configuration.type_k

    assert type_k(card) != "f16"
    with pytest.raises(PresetError):
        type_k(NVIDIA)
