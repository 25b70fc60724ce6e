"""Number formats: 32 numbers as bytes, including their scale.

`q8_0`, `q4_0` and `q4_1` equal ggml's to the byte (`gguf/quants.py` of gguf 0.19). Sums have a
fixed order, so that the bytes of a block do not depend on the other blocks of a batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.memory.torch_caches import BLOCK, BLOCK_BYTES

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of a normal distribution within its absolute maximum: QLoRA (Dettmers et al. 2023,
arXiv 2305.14314, appendix E)."""
GAUSS8 = (
    -2.1519456, -1.3439092, -0.7560052, -0.2450941, 0.2450941, 0.7560052, 1.3439092, 2.1519456,
)  # fmt: skip
"""The eight levels with the least squared error for a unit normal distribution, 0.03454 of the
variance: Max (1960), Quantizing for minimum distortion, table I."""
N_FITS = 3
"""Iterations of fitting a block's scale; a fourth changes the error by less than 1 %."""
FP8_MAX = 448.0
"""Largest E4M3 number (Micikevicius et al. 2022, arXiv 2209.05433, table 1)."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format of blocks of `BLOCK` numbers."""

    nbytes: int
    quantise: Callable[[Tensor], Tensor]
    """`[..., BLOCK]` float32 to `[..., nbytes]` uint8."""
    dequantise: Callable[[Tensor], Tensor]


def ordered_sum(values: Tensor) -> Tensor:
    """Sum over the last dimension, a power of two, by halves, so that the order is fixed."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values


def _to_q8_0(blocks: Tensor) -> Tensor:
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    scaled = blocks * _inverse(scale)
    size = scaled.abs()
    whole = size.floor()
    codes = scaled.sign() * (whole + (2 * (size - whole)).floor())  # rounds halves away from zero
    return torch.cat((_as_bytes(scale.half()), codes.to(torch.int8).view(torch.uint8)), -1)


def _from_q8_0(blocks: Tensor) -> Tensor:
    return _floats(blocks[..., :2]) * blocks[..., 2:].view(torch.int8).float()


def _to_q4_0(blocks: Tensor) -> Tensor:
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = largest / -8
    codes = (blocks * _inverse(scale) + 8.5).trunc().clamp(0, 15).to(torch.uint8)
    return torch.cat((_as_bytes(scale.half()), _nibbles(codes)), -1)


def _from_q4_0(blocks: Tensor) -> Tensor:
    return _floats(blocks[..., :2]) * (_from_nibbles(blocks[..., 2:]).float() - 8)


def _to_q4_1(blocks: Tensor) -> Tensor:
    low = blocks.amin(-1, keepdim=True)
    scale = (blocks.amax(-1, keepdim=True) - low) / 15
    codes = ((blocks - low) * _inverse(scale) + 0.5).trunc().clamp(0, 15).to(torch.uint8)
    return torch.cat((_as_bytes(scale.half()), _as_bytes(low.half()), _nibbles(codes)), -1)


def _from_q4_1(blocks: Tensor) -> Tensor:
    scale, low = _floats(blocks[..., :2]), _floats(blocks[..., 2:4])
    return scale * _from_nibbles(blocks[..., 4:]).float() + low


def _to_nf4(blocks: Tensor) -> Tensor:
    scale = blocks.abs().amax(-1, keepdim=True).half()
    codes = _nearest(blocks * _inverse(scale.float()), NF4)
    return torch.cat((_as_bytes(scale), _nibbles(codes)), -1)


def _from_nf4(blocks: Tensor) -> Tensor:
    return _floats(blocks[..., :2]) * _levels(_from_nibbles(blocks[..., 2:]), NF4)


def _to_q3(blocks: Tensor) -> Tensor:
    """Alternate between codes and the scale with the least squared error, as k-means does."""
    scale = (ordered_sum(blocks * blocks) / BLOCK).sqrt()
    for _ in range(N_FITS):
        levels = _levels(_nearest(blocks * _inverse(scale), GAUSS8), GAUSS8)
        scale = ordered_sum(blocks * levels) / ordered_sum(levels * levels)
    stored = scale.half()
    codes = _nearest(blocks * _inverse(stored.float()), GAUSS8)
    return torch.cat((_as_bytes(stored), _packed(codes & 3, 2), _packed(codes >> 2, 1)), -1)


def _from_q3(blocks: Tensor) -> Tensor:
    low, high = blocks[..., 2 : 2 + BLOCK // 4], blocks[..., 2 + BLOCK // 4 :]
    codes = _unpacked(low, 2) | (_unpacked(high, 1) << 2)
    return _floats(blocks[..., :2]) * _levels(codes, GAUSS8)


def _to_fp8(blocks: Tensor) -> Tensor:
    scale = (blocks.abs().amax(-1, keepdim=True) / FP8_MAX).bfloat16()
    scaled = (blocks * _inverse(scale.float())).clamp(-FP8_MAX, FP8_MAX)
    return torch.cat((_as_bytes(scale), scaled.to(torch.float8_e4m3fn).view(torch.uint8)), -1)


def _from_fp8(blocks: Tensor) -> Tensor:
    scale = blocks[..., :2].contiguous().view(torch.bfloat16).float()
    return scale * blocks[..., 2:].contiguous().view(torch.float8_e4m3fn).float()


BLOCK_FORMATS = {
    "q8_0": BlockFormat(BLOCK_BYTES["q8_0"], _to_q8_0, _from_q8_0),
    "fp8": BlockFormat(BLOCK_BYTES["fp8"], _to_fp8, _from_fp8),
    "q4_1": BlockFormat(BLOCK_BYTES["q4_1"], _to_q4_1, _from_q4_1),
    "q4_0": BlockFormat(BLOCK_BYTES["q4_0"], _to_q4_0, _from_q4_0),
    "nf4": BlockFormat(BLOCK_BYTES["nf4"], _to_nf4, _from_nf4),
    "q3": BlockFormat(BLOCK_BYTES["q3"], _to_q3, _from_q3),
}


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, 1 / scale)


def _nearest(values: Tensor, levels: tuple[float, ...]) -> Tensor:
    table = torch.tensor(levels, device=values.device)
    return torch.bucketize(values, (table[1:] + table[:-1]) / 2).to(torch.uint8)


def _levels(codes: Tensor, levels: tuple[float, ...]) -> Tensor:
    return torch.tensor(levels, device=codes.device)[codes.int()]


def _as_bytes(scales: Tensor) -> Tensor:
    return scales.contiguous().view(torch.uint8)


def _floats(halves: Tensor) -> Tensor:
    return halves.contiguous().view(torch.float16).float()


def _nibbles(codes: Tensor) -> Tensor:
    """Pack as ggml does: the first half of a block in the low bits, the second in the high bits."""
    half = codes.shape[-1] // 2
    return codes[..., :half] | (codes[..., half:] << 4)


def _from_nibbles(packed: Tensor) -> Tensor:
    return torch.cat((packed & 15, packed >> 4), -1)


def _packed(codes: Tensor, n_bits: int) -> Tensor:
    """Pack adjacent codes of 1 or 2 bits into bytes, the first code in the lowest bits."""
    per_byte = 8 // n_bits
    apart = torch.unflatten(codes, -1, (-1, per_byte))
    packed = apart[..., 0]
    for index in range(1, per_byte):
        packed = packed | (apart[..., index] << (n_bits * index))
    return packed


def _unpacked(packed: Tensor, n_bits: int) -> Tensor:
    largest = (1 << n_bits) - 1
    return torch.stack([(packed >> at) & largest for at in range(0, 8, n_bits)], -1).flatten(-2)
