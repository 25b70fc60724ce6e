import pytest

from engine.errors import HardwareError
from engine.memory.cards import UnknownCardError, all_cards, find_card, planned_devices
from engine.memory.hardware import Device, devices
from engine.memory.units import GIB, MIB


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("RTX 4090", 24564),
        ("NVIDIA GeForce RTX 4090", 24564),
        ("4090", 24564),
        ("rtx3060", 12288),
        ("RX 7900 XTX", 24560),
        ("AMD Radeon(TM) RX 9070 XT", 16304),
        ("RTX 4060 Ti 16 GB", 16380),
        ("a100 80GB", 81920),
        ("Intel(R) Arc(TM) B580 Graphics", 12216),
        ("M4 Max 64GB", 49152),
        ("Apple M1 16GiB", 10922),
        ("DGX Spark", 124518),
    ],
)
def test_a_card_is_found_however_its_name_is_written(name: str, mib: int) -> None:
    assert find_card(name).memory_bytes // MIB == mib


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("RTX 4095", "did you mean GeForce RTX 4090"),
        ("rx 7900", "did you mean Radeon RX 7900"),
        ("banana", "such as 24GiB"),
        ("RTX 4060 Ti", "choose one of GeForce RTX 4060 Ti 8GB, GeForce RTX 4060 Ti 16GB"),
        ("M4 Max", "M4 Max 36GB, M4 Max 48GB"),
        ("", "no card is called ''"),
    ],
)
def test_an_unknown_or_ambiguous_name_is_refused_with_what_is_near(name: str, hint: str) -> None:
    with pytest.raises(UnknownCardError, match=hint):
        find_card(name)


def test_every_name_and_alias_leads_to_its_own_card() -> None:
    for card in all_cards():
        for name in (card.name, *card.aliases):
            assert find_card(name) == card, name


def test_a_machine_with_unified_memory_sets_the_ram() -> None:
    gpu, cpu = planned_devices(cards=("M4 Pro 48GB",))
    assert gpu.is_unified
    assert (gpu.total_bytes // GIB, cpu.total_bytes // GIB) == (36, 48)
    with pytest.raises(HardwareError, match="complete machine"):
        planned_devices(cards=("M4 Pro 48GB",), ram_bytes=GIB)
    with pytest.raises(HardwareError, match="complete machine"):
        planned_devices(cards=("M4 Pro 48GB", "3090"))


def test_the_processor_of_another_machine_is_that_of_the_machine_or_the_given_one() -> None:
    def cpu(**changes: object) -> Device:
        return planned_devices(**changes)[-1]  # type: ignore[arg-type]  # by name

    assert cpu(cards=("M4 Pro 48GB",)).instructions == "arm"
    assert cpu(cards=("Strix Halo 64GB",)).instructions == "avx2"
    assert cpu(cards=("3090",), instructions="arm").instructions == "arm"
    assert cpu(ram_bytes=GIB, has_gpu=False, instructions="none").instructions == "none"
    assert cpu(cards=("3090",)).instructions == devices()[-1].instructions
