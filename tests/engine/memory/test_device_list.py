"""GPUs as they are typed."""

import pytest

from engine.errors import HardwareError
from engine.memory.cards import TypedGpu, parse_devices
from engine.memory.units import GIB, MIB


def sizes(text: str) -> list[int | None]:
    return [gpu.nbytes for gpu in parse_devices(text)]


def test_sizes_of_gpus_are_gib_without_a_unit() -> None:
    assert sizes("8") == [8 * GIB]
    assert sizes("8GiB, 24 and 512 MiB") == [8 * GIB, 24 * GIB, 512 * MIB]
    assert sizes("2x24GiB; 8GiB+8GiB") == [24 * GIB, 24 * GIB, 8 * GIB, 8 * GIB]


def test_sizes_cards_and_workers_stand_in_one_list() -> None:
    assert parse_devices("12GiB, 2x 4090, host1:2x24, 10.0.0.2:7000:RTX 3060") == (
        TypedGpu(12 * GIB),
        *[TypedGpu(card="GeForce RTX 4090")] * 2,
        *[TypedGpu(24 * GIB, endpoint="host1:50052")] * 2,
        TypedGpu(card="GeForce RTX 3060", endpoint="10.0.0.2:7000"),
    )


@pytest.mark.parametrize(
    "text",
    ["", "0", "-8", "big", "8GiB,", "17x8GiB", "0x8GiB", "host1:", ":24GiB", "host 1:24GiB",
     "host1:0", "host1:99999:8GiB", "[::1]:8GiB", "host1:0:8GiB", "--rpc:8GiB", "a;b:8GiB"],
)  # fmt: skip
def test_what_is_no_gpu_is_refused(text: str) -> None:
    with pytest.raises(HardwareError):
        parse_devices(text)


@pytest.mark.parametrize("text", ["7,5GB", "8,24", "8GiB, 7,5GB", "1,024MiB"])
def test_a_comma_in_a_number_is_refused(text: str) -> None:
    with pytest.raises(HardwareError, match="is ambiguous"):
        parse_devices(text)
