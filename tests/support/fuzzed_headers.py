"""Damages GGUF headers in the ways that files are damaged, and in those that hurt readers."""

import random
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from engine.configuration import Configuration
from engine.errors import EngineError, ModelFileError
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.units import GIB
from engine.model.architecture import Model, architecture_of
from engine.model.ggml import GGML_TYPES
from engine.model.gguf import GgufFile, HeaderReader, TensorInfo, join_parts
from tests.support.gguf_files import header, llama_values
from tests.support.made_models import shape_named

DEVICES = (Device("GPU 0", "gpu", 24 * GIB, 24 * GIB), Device("CPU", "cpu", 64 * GIB, 64 * GIB))
Row = tuple[str, tuple[int, ...], int, int]
TYPE_IDS = {kind.name: number for number, kind in GGML_TYPES.items()}
BOMBS = (
    0, 1, 2, 3, 7, 8, 9, 255, 256, 4096, 4097, 65_535, 65_536, 10**6, 2**24, 2**31 - 1, 2**31,
    2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
FLOATS = (0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"))
ENTRIES = ("llama-3.2-1b", "rwkv-7-world-2.9b")
PATH = Path("fuzz.gguf")
N_TENSORS = 60
"""Of a catalogue model: more of them only take longer."""
N_NEAR = 4
"""Places near each other that a burst damages."""


@dataclass(frozen=True)
class Seed:
    """A good header, the size that its file claims, and where its numbers stand."""

    name: str
    data: bytes
    nbytes: int
    numbers: tuple[tuple[int, int], ...]
    """Place and width of every number; first those of the keys, then those of the tensors."""
    n_of_keys: int
    values: dict[str, object]
    table: bytes
    """The tensor table."""
    n_tensors: int

    def number(self, rng: random.Random) -> tuple[int, int]:
        """Give the place of a number, of a key and of a tensor alike often."""
        if rng.random() < 0.5:
            return self.numbers[rng.randrange(self.n_of_keys)]
        return rng.choice(self.numbers)


@dataclass(frozen=True)
class Case:
    """A damaged header."""

    seed: str
    damage: str
    data: bytes
    nbytes: int


class _Recorder(HeaderReader):
    """Notes where it finds numbers."""

    def __init__(self, data: bytes, nbytes: int) -> None:
        super().__init__(PATH, nbytes, partial(_given, data), max(len(data), 1 << 12))
        self.found: list[tuple[int, int]] = []
        self.n_of_keys = self.table_at = 0

    def tensors(self, count: int) -> tuple[TensorInfo, ...]:
        self.n_of_keys, self.table_at = len(self.found), self.at
        return super().tensors(count)

    def unpack(self, form: struct.Struct) -> tuple[int | float | bool | str, ...]:
        at = self.at
        for code in re.findall(r"\d*[a-zA-Z?]", form.format):
            for _ in range(int(code[:-1] or 1)):
                width = struct.calcsize(f"<{code[-1]}")
                self.found.append((at, width))
                at += width
        return super().unpack(form)


def seed(name: str, values: dict[str, object], tensors: list[Row], data_bytes: int) -> Seed:
    """A seed of a header and the bytes after it."""
    data = header(values, tensors)
    nbytes = -(-len(data) // 32) * 32 + data_bytes
    recorder = _Recorder(data, nbytes)
    recorder.read()
    numbers, table = tuple(recorder.found), data[recorder.table_at :]
    return Seed(name, data, nbytes, numbers, recorder.n_of_keys, values, table, len(tensors))


def catalog_seed(name: str, quantization: str = "Q4_K_M") -> Seed:
    """Give the header of a model of the catalogue, with three words and its first tensors."""
    file = shape_named(name).header(quantization)
    values: dict[str, object] = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in file.values.items()
        if not isinstance(value, int) or value >= 0
    }
    values["tokenizer.ggml.tokens"] = ["a", "b", "c"]
    tensors = [(t.name, t.shape, TYPE_IDS[t.type.name], t.offset) for t in file.tensors]
    tensors = tensors[:N_TENSORS]
    return seed(name, values, tensors, file.nbytes)


def large_seed(n_vocab: int) -> Seed:
    """Give a header that is nearly all vocabulary."""
    values = llama_values(**{"tokenizer.ggml.tokens": ["x" * (n % 13) for n in range(n_vocab)]})
    return seed(f"vocabulary of {n_vocab}", values, [("t", (64, 3), 0, 0)], 768)


def small_seeds(entries: Sequence[str] = ENTRIES) -> list[Seed]:
    """Give the seeds that are read in a moment."""
    values = llama_values(**{"llama.attention.head_count_kv": [2, 1], "general.alignment": 32})
    tensors: list[Row] = [
        ("token_embd.weight", (64, 3), 0, 0),
        ("blk.0.attn_k.weight", (64, 32), 8, 768),
    ]
    small = seed("small", values, tensors, 768 + 64 * 34)
    return [small, *(catalog_seed(name) for name in entries)]


def damaged(seeds: Sequence[Seed], n_cases: int, random_seed: int) -> Iterator[Case]:
    """Give damaged headers, the same ones for the same seed."""
    rng = random.Random(random_seed)
    for _ in range(n_cases):
        base = rng.choice(seeds)
        damage = rng.choice(DAMAGES)
        data = bytearray(base.data)
        nbytes = damage(data, base, rng.choice(seeds), rng)
        yield Case(base.name, damage.__name__.strip("_"), bytes(data), nbytes)


def outcome(case: Case) -> str:
    """Read a case and estimate it; give how far that came, and raise what must not be raised."""
    chunk = max(len(case.data), 1 << 12)
    try:
        part = HeaderReader(PATH, case.nbytes, partial(_given, case.data), chunk).read()
        file = join_parts(part, _no_other_part)
    except ModelFileError:
        return "refused"
    try:
        model = Model(file, architecture_of(file))
        estimate(model, Configuration(PATH, 4096), DEVICES)
    except EngineError:
        return "read, no estimate"
    return "estimated"


def _given(data: bytes, start: int, stop: int) -> bytes:
    # After the header lies a hole of zeros, as in a sparse file.
    return data[start:stop] + bytes(max(0, stop - max(start, len(data))))


def _no_other_part(name: str) -> GgufFile:
    raise ModelFileError(f"{name} is missing")


def _bits(data: bytearray, seed: Seed, other: Seed, rng: random.Random) -> int:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return seed.nbytes


def _numbers(data: bytearray, seed: Seed, other: Seed, rng: random.Random) -> int:
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at, width = seed.number(rng)
        bomb = rng.choice(BOMBS) % (1 << 8 * width)
        data[at : at + width] = bomb.to_bytes(width, "little")
    return seed.nbytes


def _nudged(data: bytearray, seed: Seed, other: Seed, rng: random.Random) -> int:
    at, width = seed.number(rng)
    value = int.from_bytes(data[at : at + width], "little") + rng.choice((-33, -1, 1, 2, 32))
    data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
    return seed.nbytes


def _burst(data: bytearray, seed: Seed, other: Seed, rng: random.Random) -> int:
    first = rng.randrange(max(1, len(seed.numbers) - N_NEAR))
    for at, width in seed.numbers[first : first + N_NEAR]:
        data[at : at + width] = rng.randbytes(width)
    return seed.nbytes


def _cut(data: bytearray, seed: Seed, other: Seed, rng: random.Random) -> int:
    del data[rng.randrange(len(data)) :]
    return len(data)


def _shrunk(data: bytearray, seed: Seed, other: Seed, rng: random.Random) -> int:
    return rng.randrange(seed.nbytes)


def _gone(data: bytearray, seed: Seed, other: Seed, rng: random.Random) -> int:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 4, 8, 100))]
    return seed.nbytes


def _twice(data: bytearray, seed: Seed, other: Seed, rng: random.Random) -> int:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.choice((8, 32, 200))]
    return seed.nbytes


def _spliced(data: bytearray, seed: Seed, other: Seed, rng: random.Random) -> int:
    (mine, _), (theirs, _) = rng.choice(seed.numbers), rng.choice(other.numbers)
    length = rng.choice((16, 64, 500, len(other.data)))
    data[mine : mine + length] = other.data[theirs : theirs + length]
    return max(seed.nbytes, other.nbytes)


def _noise(data: bytearray, seed: Seed, other: Seed, rng: random.Random) -> int:
    at = rng.randrange(24, len(data))
    data[at:] = rng.randbytes(min(len(data) - at, 4096))
    return seed.nbytes


def _huge(data: bytearray, seed: Seed, other: Seed, rng: random.Random) -> int:
    _numbers(data, seed, other, rng)
    return 1 << rng.randrange(30, 62)


def _values(data: bytearray, seed: Seed, other: Seed, rng: random.Random) -> int:
    """A whole header with keys that no model has."""
    values = dict(seed.values)
    if len(values["tokenizer.ggml.tokens"]) > 1000:  # type: ignore[arg-type]
        return _numbers(data, seed, other, rng)
    if rng.random() < 0.2:
        mine, theirs = (f"{each.values['general.architecture']}" for each in (seed, other))
        values = {key.replace(f"{mine}.", f"{theirs}."): value for key, value in values.items()}
        values["general.architecture"] = theirs
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _odd_value(values, rng)
    start = header(values)[:8] + struct.pack("<QQ", seed.n_tensors, len(values))
    data[:] = start + header(values)[24:] + seed.table
    return seed.nbytes + len(data)


def _odd_value(values: dict[str, object], rng: random.Random) -> None:
    key = rng.choice(list(values))
    number = rng.choice([bomb for bomb in BOMBS if bomb < 1 << 32])
    match rng.randrange(8):
        case 0:
            values.pop(key)
        case 1:
            values[key] = rng.choice(FLOATS)
        case 2:
            values[key] = [number] * rng.choice((0, 1, 2, 48, 4096))
        case 3:
            values[key] = [rng.choice((0, 1, 2, 8, number)) for _ in range(rng.choice((32, 200)))]
        case 4:
            values[key] = rng.choice(("", "x", "llama", "é" * 100))
        case 5:
            values[key] = rng.random() < 0.5
        case _:
            values[key] = number


Damage = Callable[[bytearray, Seed, Seed, random.Random], int]
DAMAGES: tuple[Damage, ...] = (
    _bits, _numbers, _numbers, _numbers, _nudged, _nudged, _burst, _cut, _shrunk, _gone, _twice,
    _spliced, _noise, _huge, _huge, _values, _values, _values, _values,
)  # fmt: skip
