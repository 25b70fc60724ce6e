"""Memory bandwidth: RAM as measured on this machine, cards by their data sheet."""

import ctypes
import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.files import NewestEntries
from engine.memory.cards import card_of
from engine.memory.hardware import Device, find_cpu, this_processor, usable_cores
from engine.memory.units import MIB

Basis = Literal["measured here", "measured while busy", "nominal", "typical"]
VERSION = 3
MAX_MACHINES = 16
BUFFER_BYTES = 256 * MIB  # more than a processor's caches hold, so that most comes from RAM
MIN_BUFFER_BYTES = 16 * MIB
FREE_SHARE = 0.25  # of the free memory, at most, for the buffer
MEASURE_S = 0.25  # other programs lower a pass, and nothing raises one: the best counts
N_MEASURES = 3  # on an idle machine until a figure is settled, and at most as many on a busy one
BUSY_SHARE = 0.5  # load of the last minute over cores, from which on a machine is busy
SANE = (1e8, 1e13)  # bytes per second between which a cached figure is accepted


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second of a device's memory, and the source of the figure."""

    bytes_per_s: float
    basis: Basis


TYPICAL = Bandwidth(5e10, "typical")
"""Assumed bandwidth of an unknown machine's RAM: two channels of DDR4-3200 read 51 GB/s."""


@dataclass(frozen=True, slots=True)
class MeasuredBandwidth:
    """The cached figures of a machine."""

    best: float = 0.0
    n_idle: int = 0
    """Number of measurements on an idle machine; the figure is the best of all."""
    n_busy: int = 0


class Bandwidths:
    """The bandwidth of devices. RAM is measured on first use and cached in a file.

    Without a writable file each process measures once.
    """

    def __init__(self, path: Path | None) -> None:
        self._entries = NewestEntries(path, "bandwidths", VERSION, MAX_MACHINES, MeasuredBandwidth)
        self._main: Bandwidth | None = None

    def of(self, device: Device) -> Bandwidth | None:
        """Bandwidth of a GPU by its name (None if it is not in the table of cards), or of RAM."""
        if device.kind == "cpu":
            return self.ram()
        card = card_of(device)
        return None if card is None else Bandwidth(card.bandwidth_gbps * 1e9, "nominal")

    def ram(self) -> Bandwidth:
        """Bytes per second that all cores together read."""
        if self._main is None:
            cached = self._entries.read().get(_machine(), MeasuredBandwidth())
            known = cached if SANE[0] < cached.best < SANE[1] else MeasuredBandwidth()
            is_busy = _is_busy()
            if max(known.n_idle, is_busy * known.n_busy) < N_MEASURES:
                known = MeasuredBandwidth(
                    max(known.best, measure_ram()),
                    known.n_idle + (not is_busy),
                    known.n_busy + is_busy,
                )
                self._entries.add(_machine(), known)
            # What other programs read meanwhile is missing from a figure of busy minutes alone.
            basis: Basis = "measured here" if known.n_idle else "measured while busy"
            self._main = Bandwidth(known.best, basis)
        return self._main


def measure_ram(limit_s: float = MEASURE_S) -> float:
    """Bytes a second that all usable cores together read of a large buffer, the best pass."""
    n_threads = usable_cores()[0]
    n_bytes = min(BUFFER_BYTES, int(find_cpu().free_bytes * FREE_SHARE))
    n_each = max(n_bytes, MIN_BUFFER_BYTES) // n_threads
    buffers = [bytearray(b"\x01") * n_each for _ in range(n_threads)]  # zeros would lie nowhere
    parts = [(ctypes.c_char * n_each).from_buffer(each) for each in buffers]
    # A search for a byte that is not there reads all, with the processor's widest instructions;
    # ctypes holds no lock meanwhile.
    search = (ctypes.CDLL("msvcrt") if os.name == "nt" else ctypes.CDLL(None)).memchr
    search.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    search.restype = ctypes.c_void_p
    best, ends_at = 0.0, time.perf_counter() + limit_s
    with ThreadPoolExecutor(n_threads) as threads:
        while not best or time.perf_counter() < ends_at:
            begun = time.perf_counter()
            list(threads.map(lambda part: search(part, 0, n_each), parts))
            best = max(best, n_threads * n_each / (time.perf_counter() - begun))
    return min(best, SANE[1])


def _is_busy() -> bool:
    """Whether other processes are busy, so that a measurement may be too low."""
    try:
        return os.getloadavg()[0] > BUSY_SHARE * usable_cores()[0]
    except OSError:
        return False  # unknown


def _machine() -> str:
    return f"{platform.node()} {this_processor().name} {usable_cores()[0]}"
