"""Sizes and ages as options take them."""

import re

import click

from engine.errors import HardwareError
from engine.memory.units import GIB, KIB, MIB, parse_bytes

AGE = re.compile(r"^\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[mhdw])\s*$")
UNIT_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


class Size(click.ParamType[int]):
    """Bytes, written as `2GiB`; 0 is allowed."""

    name = "size"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Give the bytes of a size."""
        if isinstance(value, int):
            return value
        if value.strip() == "0":
            return 0
        try:
            return parse_bytes(value)
        except HardwareError as error:
            self.fail(str(error), param, ctx)


def spelled(nbytes: int) -> str:
    """Write a size so that reading it gives the very number again, such as `4GiB`."""
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes and nbytes % factor == 0:
            return f"{nbytes // factor}{unit}"
    return str(nbytes)


class Age(click.ParamType[float]):
    """Seconds, written as `30d`."""

    name = "age"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Give the seconds of an age."""
        if isinstance(value, float):
            return value
        match = AGE.match(value)
        if match is None:
            self.fail(f"{value!r} is no age: write it as 30d, 12h or 2w", param, ctx)
        return float(match["number"]) * UNIT_S[match["unit"]]
