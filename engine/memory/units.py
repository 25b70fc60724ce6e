"""Bytes as people write and read them."""

import re

from engine.errors import HardwareError

KIB, MIB, GIB = 1024, 1024**2, 1024**3
FACTORS = {
    "": 1, "b": 1, "k": KIB, "kib": KIB, "kb": 1000, "m": MIB, "mib": MIB, "mb": 1000**2,
    "g": GIB, "gib": GIB, "gb": 1000**3, "t": 1024 * GIB, "tib": 1024 * GIB, "tb": 1000**4,
}  # fmt: skip
SIZE = re.compile(r"^\s*(?P<number>\d+(?:[.,]\d+)?)\s*(?P<unit>[a-zA-Z]*)\s*$")


def parse_bytes(text: str) -> int:
    """Read a size such as `8GiB`, `7.5 GB` or `800M` (powers of 1024 unless the unit ends in B).

    Raises:
        HardwareError: no size, or none above zero.
    """
    match = SIZE.match(text)
    factor = FACTORS.get(match["unit"].lower()) if match else None
    if match is None or factor is None:
        raise HardwareError(f"{text!r} is no size: write it as 8GiB, 7.5GB or 800MiB")
    nbytes = round(float(match["number"].replace(",", ".")) * factor)
    if nbytes <= 0:
        raise HardwareError(f"{text!r} is no memory at all: write a size above zero")
    return nbytes


def format_bytes(nbytes: int) -> str:
    """Write a size in the unit that suits it, such as `27 MiB` or `1.46 GiB`."""
    sign, size = ("-", -nbytes) if nbytes < 0 else ("", nbytes)
    if size < 10 * KIB:
        return f"{sign}{size} B"
    if size < MIB:
        return f"{sign}{size / KIB:.0f} KiB"
    if size < 10 * MIB:
        return f"{sign}{size / MIB:.1f} MiB"
    if size < GIB:
        return f"{sign}{size / MIB:.0f} MiB"
    return f"{sign}{size / GIB:.2f} GiB"
