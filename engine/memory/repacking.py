"""Which weights llama.cpp rearranges for the CPU when it loads them.

Tied embeddings of such a type lie in memory twice: as rows that tokens are looked up in, and
repacked as the output layer. Types and rows are those of llama.cpp 0c1e57098
(`ggml_repack_get_optimal_repack_type`, `ggml/src/ggml-cpu/repack.cpp`); the layouts of Intel's AMX,
RISC-V and KleidiAI are left out.
"""

import platform
from functools import lru_cache
from pathlib import Path
from typing import Literal

from engine.model.gguf import TensorInfo

Instructions = Literal["none", "avx2", "avx512", "arm"]
"""What a processor can: AVX2 and AVX-512 of x86, the dot products of ARM (`asimddp`: since Cortex
A75, Graviton 2 and all of Apple's); older ones repack nothing."""

AVX2 = {"q4_0": 8, "q4_K": 8, "iq4_nl": 8, "mxfp4": 8}
ROW_MULTIPLES: dict[Instructions, dict[str, int]] = {
    "none": {},
    "avx2": AVX2,
    "avx512": AVX2 | {"q2_K": 8},
    "arm": {
        "q4_0": 4, "q4_K": 8, "q5_K": 8, "q6_K": 8, "iq4_nl": 4, "mxfp4": 4, "q8_0": 4, "q1_0": 4,
    },
}  # fmt: skip
"""Types that are repacked, and of what their number of rows must be a multiple. On ARM the matrix
products (i8mm) and vectors of 256 bits (SVE) change the layout only."""


def is_repacked(tensor: TensorInfo, instructions: Instructions) -> bool:
    """Whether a matrix is rearranged for a processor with these instructions."""
    multiple = ROW_MULTIPLES[instructions].get(tensor.type.name)
    return multiple is not None and len(tensor.shape) == 2 and tensor.shape[1] % multiple == 0


@lru_cache(maxsize=1)
def instructions_here() -> Instructions:
    """Give what the processor of this machine can; where it cannot be asked, what most can."""
    is_arm = platform.machine().lower() in ("arm64", "aarch64")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # macOS and Windows have no such file
        return "arm" if is_arm else "avx2"
    return instructions_of({word for line in lines for word in line.split()}, is_arm=is_arm)


def instructions_of(features: set[str], *, is_arm: bool) -> Instructions:
    """Give the instructions that are repacked for, by the features that Linux names."""
    if is_arm:
        return "arm" if "asimddp" in features else "none"
    if "avx2" not in features:
        return "none"
    return "avx512" if "avx512f" in features else "avx2"
