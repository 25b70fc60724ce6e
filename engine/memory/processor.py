"""The processor of this machine, and which weights llama.cpp rearranges for one.

Tied embeddings of such a type lie in memory twice: as rows that tokens are looked up in, and
repacked as the output layer. Types and rows are those of llama.cpp 0c1e57098
(`ggml_repack_get_optimal_repack_type`, `ggml/src/ggml-cpu/repack.cpp`); the layouts of Intel's AMX,
RISC-V and KleidiAI are left out.
"""

import platform
from collections.abc import Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from engine.model.gguf_header import TensorInfo

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


@dataclass(frozen=True, slots=True)
class Processor:
    """What is known of a processor."""

    name: str
    """The model, else the architecture."""
    features: frozenset[str] | None
    """Its instruction sets by Linux's names; None where they cannot be asked for."""


@cache
def this_processor() -> Processor:
    """The processor of this machine; macOS and Windows do not say what it can."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Processor(platform.processor() or platform.machine(), None)
    return described_processor(text)


def described_processor(cpuinfo: str) -> Processor:
    """The first processor of a text as `/proc/cpuinfo` has it."""
    values: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())
    name = values.get("model name") or platform.processor() or platform.machine()
    features = values.get("flags") or values.get("Features") or ""  # x86, ARM
    return Processor(name, frozenset(features.split()))


def instructions_here() -> Instructions:
    """What the processor of this machine can; where it cannot be asked, what most can."""
    is_arm = platform.machine().lower() in ("arm64", "aarch64")
    features = this_processor().features
    if features is None:
        return "arm" if is_arm else "avx2"
    return instructions_of(features, is_arm=is_arm)


def instructions_of(features: Set[str], *, is_arm: bool) -> Instructions:
    """The instructions that are repacked for, by the features that Linux names."""
    if is_arm:
        return "arm" if "asimddp" in features else "none"
    if "avx2" not in features:
        return "none"
    return "avx512" if "avx512f" in features else "avx2"
