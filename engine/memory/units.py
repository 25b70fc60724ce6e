"""Bytes as people write and read them, and as llama.cpp reports them."""

import re
from dataclasses import dataclass

from engine.errors import HardwareError, shown

FLOAT_BYTES, HALF_BYTES = 4, 2
KIB, MIB, GIB = 1024, 1024**2, 1024**3
FACTORS = {
    "": GIB, "b": 1, "k": KIB, "kib": KIB, "kb": 1000, "m": MIB, "mib": MIB, "mb": 1000**2,
    "g": GIB, "gib": GIB, "gb": 1000**3, "t": 1024 * GIB, "tib": 1024 * GIB, "tb": 1000**4,
}  # fmt: skip
MAX_BYTES = 1 << 60
"""The largest valid size."""
MAX_GIB = 4096
"""The largest number without a unit that is read as GiB."""
SIZE = re.compile(
    r"^\s*(?:(?P<grouped>[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?)|(?P<plain>\d+(?:[.,]\d+)?))"
    r"\s*(?P<unit>[a-zA-Z]*)\s*$"
)
"""A comma before each three digits groups them, as in `1,024`; any other one is a decimal comma."""


@dataclass(frozen=True, slots=True)
class BufferSize:
    """One buffer as llama.cpp reported it."""

    device: str
    kind: str
    """`model`, `KV`, `compute`, `output` or `RS`."""
    nbytes: int
    owner: str = "target"
    """`target`, `draft` or `projector`."""

    @property
    def is_mapped(self) -> bool:
        """Whether the buffer consists of mapped pages of the model file."""
        return self.device == "CPU_Mapped"


def parse_bytes(text: str) -> int:
    """Read a size such as `8GiB`, `7.5 GB`, `800M` (powers of 1024 unless the unit ends in B) or 8.

    A number without a unit is GiB. `1,024MiB` is 1024 of them, and `7,5GB` is 7.5 GB.

    Raises:
        HardwareError: no size, none above zero, or more than any machine has.
    """
    match = SIZE.match(text)
    factor = FACTORS.get(match["unit"].lower()) if match else None
    if match is None or factor is None:
        raise HardwareError(f"{shown(text)} is not a size: write one such as 8GiB, 7.5GB or 800MiB")
    grouped, plain = match["grouped"], match["plain"]
    number = float(grouped.replace(",", "") if grouped else plain.replace(",", "."))
    if not match["unit"] and number > MAX_GIB:
        raise HardwareError(
            f"{shown(text)} has no unit: write one such as 8GiB, or {text.strip()}B for bytes"
        )
    if number * factor > MAX_BYTES:
        raise HardwareError(f"{shown(text)} is too large: write a size such as 8GiB")
    nbytes = round(number * factor)
    if nbytes <= 0:
        raise HardwareError(f"{shown(text)} is zero bytes: write a size above zero")
    return nbytes


def format_bytes(nbytes: int) -> str:
    """A size with three digits: `27 MiB`, `1.53 GiB`, `-2 MiB`."""
    sign, size = ("-", -float(nbytes)) if nbytes < 0 else ("", float(nbytes))
    for unit in ("B", "KiB", "MiB"):
        if size < 1000:
            digits = f"{size:.0f}" if unit == "B" or size >= 100 else f"{size:.3g}"
            return f"{sign}{digits} {unit}"
        size /= KIB
    return f"{sign}{size:.3g} GiB" if size < 100 else f"{sign}{size:.0f} GiB"
