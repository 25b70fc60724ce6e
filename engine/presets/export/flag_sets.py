"""Which words a llama-server understands: they changed three times within a year."""

from dataclasses import dataclass
from typing import Literal

FlagSetName = Literal["current", "legacy", "ik"]


@dataclass(frozen=True, slots=True)
class FlagSet:
    """The words of one family of llama-server builds."""

    name: FlagSetName
    title: str
    builds: str
    """Which builds take these words, for a person."""
    all_layers: str
    """Value of `--n-gpu-layers` that is all of them."""
    has_fit: bool
    """Whether `--fit off` keeps the server from changing what is said."""
    has_swa_full: bool
    has_unified: bool
    """Whether `--kv-unified` exists."""
    has_repack: bool
    """Whether `--no-repack` exists."""
    joins_adapters: bool
    """Whether several adapters are one comma-separated value of `--lora`."""


CURRENT = FlagSet(
    name="current",
    title="current",
    builds="llama.cpp from May 2026 on (checked with b11434 and commit 0c1e57098)",
    all_layers="all",
    has_fit=True,
    has_swa_full=True,
    has_unified=True,
    has_repack=True,
    joins_adapters=True,
)

LEGACY = FlagSet(
    name="legacy",
    title="legacy",
    builds="llama.cpp from February to April 2026 (checked with the sources in llama-cpp-python "
    "0.3.18 and 0.3.20)",
    all_layers="999",
    has_fit=True,
    has_swa_full=True,
    has_unified=True,
    has_repack=True,
    joins_adapters=True,
)

IK = FlagSet(
    name="ik",
    title="ik_llama.cpp",
    builds="ik_llama.cpp (checked with commit 8337e4c of August 2026)",
    all_layers="999",
    has_fit=False,
    has_swa_full=False,
    has_unified=False,
    has_repack=False,
    joins_adapters=False,
)

FLAG_SETS: dict[FlagSetName, FlagSet] = {each.name: each for each in (CURRENT, LEGACY, IK)}
