from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")

from torch import Tensor  # noqa: E402

from engine.backends.torch.caches.formats import (  # noqa: E402
    BLOCK_FORMATS,
    GAUSS8,
    NF4,
)
from engine.memory.torch_caches import BLOCK  # noqa: E402

GGML = ("q8_0", "q4_0", "q4_1")
SCALES = (1e-4, 0.03, 1.0, 40.0)


def blocks_of(seed: int, scale: float, n_blocks: int = 50) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    blocks = torch.randn(n_blocks, BLOCK, generator=draws) * scale
    blocks[0] = 0
    blocks[1] = scale
    blocks[2, 1:] = 0
    blocks[3, ::2] *= 100
    blocks[4] = blocks[4].abs()
    blocks[5] = -blocks[5].abs()
    return blocks


@pytest.mark.parametrize("name", GGML)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from(SCALES))
def test_ggml_s_formats_are_those_of_gguf_to_the_byte(name: str, seed: int, scale: float) -> None:
    form = BLOCK_FORMATS[name]
    blocks = blocks_of(seed, scale)
    kind = gguf.GGMLQuantizationType[name.upper()]
    expected = gguf.quants.quantize(blocks.numpy(), kind)
    coded = form.quantise(blocks)
    assert np.array_equal(coded.numpy(), expected)
    back = gguf.quants.dequantize(expected, kind)
    assert np.array_equal(form.dequantise(coded).numpy(), back)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_a_block_has_its_declared_size(name: str) -> None:
    form = BLOCK_FORMATS[name]
    coded = form.quantise(blocks_of(1, 1.0))
    assert coded.shape == (50, form.nbytes)
    assert coded.dtype == torch.uint8
    if name in GGML:
        from engine.model.ggml import TYPES_BY_NAME

        assert TYPES_BY_NAME[name].block_bytes == form.nbytes


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_a_block_s_bytes_do_not_depend_on_its_neighbours(name: str) -> None:
    form = BLOCK_FORMATS[name]
    blocks = blocks_of(2, 3.0, 301)
    together = form.quantise(blocks)
    for at in (0, 1, 2, 3, 77, 300):
        assert torch.equal(form.quantise(blocks[at : at + 1])[0], together[at])
    assert torch.equal(form.quantise(blocks.view(7, 43, BLOCK)).view(301, -1), together)


def _errors(name: str, blocks: Tensor) -> Tensor:
    form = BLOCK_FORMATS[name]
    return (form.dequantise(form.quantise(blocks)) - blocks).abs()


@given(seed=st.integers(0, 2**31), scale=st.sampled_from((0.03, 1.0, 40.0)))
@example(seed=641061, scale=40.0)
def test_errors_are_within_the_bound_of_each_format(seed: int, scale: float) -> None:
    """Half a step, and what a scale loses as a half: 2**-11 of it, or 2**-25 where it is tiny."""
    blocks = blocks_of(seed, scale)
    most = blocks.abs().amax(-1, keepdim=True)
    spread = blocks.amax(-1, keepdim=True) - blocks.amin(-1, keepdim=True)
    rounding = most * 2.0**-10 + 128 * 2.0**-25
    widest = max(high - low for low, high in pairwise(NF4))
    bounds = {
        "q8_0": most / 127 / 2,
        "q4_0": most / 8,  # its largest positive step is cut off: a whole step there
        "q4_1": spread / 15 / 2
        + spread * 2.0**-11,  # two halves are lost: of the step, of the least
        "nf4": most * widest / 2,
        "fp8": blocks.abs() * 2.0**-4 + most / 448 * 2.0**-10,
    }
    for name, bound in bounds.items():
        excess = _errors(name, blocks) - bound - rounding
        assert excess.max() <= 0, name


def test_three_bits_of_normal_numbers_lose_what_max_s_levels_lose() -> None:
    """0.03454 of the variance (Max 1960); a scale fitted to each block loses no more."""
    blocks = torch.randn(4000, BLOCK, generator=torch.Generator().manual_seed(0))
    lost = float((_errors("q3", blocks) ** 2).mean())
    assert 0.025 < lost < 0.03454
    assert len(GAUSS8) == 8


def test_fewer_bits_lose_more() -> None:
    blocks = torch.randn(1000, BLOCK, generator=torch.Generator().manual_seed(0))
    lost = [float((_errors(name, blocks) ** 2).mean()) for name in
            ("q8_0", "fp8", "q4_1", "nf4", "q3")]  # fmt: skip
    assert lost[0] < lost[1] < min(lost[2:4]) < max(lost[2:4]) < lost[4]
