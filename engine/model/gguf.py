"""GGUF models: keys and tensor table of each file, joined if a model is split.

The format is that of ggml's `docs/gguf.md`, versions 2 and 3; what ggml's own reader refuses
(`ggml/src/gguf.cpp` of llama.cpp 0c1e57098) is refused here too. Nothing that a header claims is
believed before its bytes were read, so a damaged one costs neither memory nor time. Of long
arrays, such as vocabularies, only the length is stored.
"""

import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, wraps
from math import prod
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from engine.errors import ModelFileError
from engine.files import open_file, reason_of
from engine.model.architectures import family_of
from engine.model.ggml import FILE_TYPES, GgmlType, ggml_type

MAGIC = b"GGUF"
MIN_BYTES = 24
MAX_STORED_ELEMENTS = 4096  # longer arrays are skipped
MAX_KEYS = 16_384
MAX_TENSORS = 65_536
MAX_KEY_BYTES = 65_535
MAX_TENSOR_NAME_BYTES = 63  # ggml's `GGML_MAX_NAME` without the closing zero
MAX_ELEMENTS_OF_ALL = 262_144  # of all stored arrays: models have a few thousand
MAX_TEXT_BYTES = 16 << 20  # of all stored strings: chat templates have up to 100 KiB
MAX_STRINGS = 1 << 22  # skipped ones of all arrays: the largest vocabularies have 262,144
MAX_ALIGNMENT = 1 << 20
MAX_DIMENSIONS = 4
MAX_TENSOR_ELEMENTS = (1 << 63) - 1
DEFAULT_ALIGNMENT = 32
Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]
STRING, ARRAY = 8, 9
FORMS = {
    number: struct.Struct(form)
    for number, form in {
        0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
        10: "<Q", 11: "<q", 12: "<d",
    }.items()
}  # fmt: skip
U32, U64 = FORMS[4], FORMS[10]
TENSOR_ROWS = tuple(struct.Struct(f"<{n}QIQ") for n in range(MAX_DIMENSIONS + 1))
"""Dimensions, type and offset of a tensor, by the number of its dimensions."""
CHUNK_BYTES = 1 << 20
MAX_HEADER_BYTES = 64 << 20  # known headers have up to 20 MiB
MAX_PARTS = 1000
SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.DOTALL)
MAX_VALUE = 2**40  # larger lengths are damage: no product of two of them can be a memory size
MAX_CACHED_MODELS = 8  # models of which computed values stay in memory
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table; `nbytes` is without padding."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int  # from the start of the data section of its file
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """The header of a model, of all its files if it is split; compared by identity."""

    path: Path
    values: Mapping[str, Value]
    array_lengths: Mapping[str, int]  # lengths of arrays, stored or skipped
    tensors: tuple[TensorInfo, ...]
    nbytes: int  # size of all files
    paths: tuple[Path, ...]
    header_sizes: tuple[int, ...] = ()  # bytes of each header, without padding; empty without files
    origin: str | None = None
    """Address or catalogue that the header comes from if the file is not on this machine; `path`
    is its bare name then."""
    weights_spread: float = 0.0  # relative tolerance of the tensors' sizes; 0 for a real table
    string_spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """First and last + 1 byte of the strings of each array of strings in the first file."""

    @property
    def alignment(self) -> int:
        """Every tensor's offset is a multiple of it."""
        return self.integer("general.alignment") or DEFAULT_ALIGNMENT

    @property
    def data_start(self) -> int:
        """The byte of the first file from which offsets of tensors count."""
        return -(-self.header_sizes[0] // self.alignment) * self.alignment

    @property
    def architecture(self) -> str:
        """Value of `general.architecture`, or empty."""
        return self.text("general.architecture") or ""

    @property
    def name(self) -> str:
        """Value of `general.name`, else the file's name."""
        return self.text("general.name") or self.path.stem

    @property
    def file_type(self) -> str:
        """Quantisation in llama.cpp's words, such as `Q4_K_M`."""
        number = self.integer("general.file_type")
        return "unknown" if number is None else FILE_TYPES.get(number, "unknown")

    @property
    def n_vocab(self) -> int | None:
        """Entries of the vocabulary."""
        length = self.array_lengths.get("tokenizer.ggml.tokens")
        return length or self.integer(f"{self.architecture}.vocab_size")

    @property
    def chat_template(self) -> str | None:
        """Jinja text of the default chat template."""
        return self.text("tokenizer.chat_template")

    def integer(self, key: str) -> int | None:
        """An integer; None if the key is missing or no integer."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, key: str) -> str | None:
        """A string; None if the key is missing or no string."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def integers(self, key: str) -> tuple[int, ...] | None:
        """An array of integers or booleans; None if the key is missing or no such array."""
        value = self.values.get(key)
        if not isinstance(value, tuple):
            return None
        numbers = tuple(int(item) for item in value if isinstance(item, int))
        return numbers if len(numbers) == len(value) else None


@dataclass
class HeaderReader:
    """Reads the header of one file in chunks, at most `MAX_HEADER_BYTES`; `at` is the next byte."""

    path: Path
    nbytes: int  # size of the whole file
    more: Callable[[int, int], bytes]  # returns the bytes from one index up to another, or fewer
    chunk_bytes: int = CHUNK_BYTES
    data: bytearray = field(default_factory=bytearray, init=False)
    at: int = field(default=0, init=False)
    _values: dict[str, Value] = field(default_factory=dict, init=False)
    _lengths: dict[str, int] = field(default_factory=dict, init=False)
    _spans: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    _totals: Counter[str] = field(default_factory=Counter, init=False)

    def read(self) -> GgufFile:
        """The header; raises as `read_gguf`."""
        self._check_version()
        n_tensors = self._count("tensors", MAX_TENSORS)
        for _ in range(self._count("keys", MAX_KEYS)):
            self._key()
        file = GgufFile(
            path=self.path,
            values=self._values,
            array_lengths=self._lengths,
            tensors=self.tensors(n_tensors),
            nbytes=self.nbytes,
            paths=(self.path,),
            header_sizes=(self.at,),
            string_spans=self._spans,
        )
        _check_data(file)
        return file

    def unpack(self, form: struct.Struct) -> tuple[Scalar, ...]:
        start, self.at = self.at, self.at + form.size
        self._reach(self.at, start)
        values: tuple[Scalar, ...] = form.unpack_from(self.data, start)
        return values

    def tensors(self, count: int) -> tuple[TensorInfo, ...]:
        tensors: dict[str, TensorInfo] = {}
        for _ in range(count):
            start = self.at
            tensor = self._tensor(start)
            if tensor.name in tensors:
                raise self._error(start, f"the tensor {tensor.name!r} appears twice")
            tensors[tensor.name] = tensor
        return tuple(tensors.values())

    def _reach(self, end: int, at: int) -> None:
        """Read every byte before `end`; errors name byte `at`."""
        if end <= len(self.data):
            return
        self._check_end(end, at)
        while (start := len(self.data)) < end:
            stop = min(max(end, start + self.chunk_bytes), self.nbytes, MAX_HEADER_BYTES)
            found = self.more(start, stop)
            if not found:
                raise self._error(
                    start, f"the file ends here, but had {self.nbytes} bytes when it was opened"
                )
            self.data += found

    def _check_end(self, end: int, at: int) -> None:
        if end > self.nbytes:
            raise self._error(at, "the file ends in the middle of its header: it is truncated")
        if end > MAX_HEADER_BYTES:
            size = f"{MAX_HEADER_BYTES >> 20} MiB"
            raise self._error(at, f"the header is longer than the limit of {size}")

    def _error(self, at: int, why: str) -> ModelFileError:
        return ModelFileError(f"{self.path.name} cannot be read at byte {at}: {why}")

    def _check_version(self) -> None:
        name, nbytes = self.path.name, self.nbytes
        if nbytes < MIN_BYTES:
            raise ModelFileError(f"{name} has {nbytes} bytes, too few for a GGUF file")
        self._reach(MIN_BYTES, 0)
        start, self.at = bytes(self.data[:4]), 4
        if start not in (MAGIC, MAGIC[::-1]):
            raise ModelFileError(
                f"{name} starts with {start!r} instead of {MAGIC!r}: it is not a GGUF file"
            )
        version = self._integer(U32)
        if start != MAGIC or version & 0xFFFF == 0:
            raise self._error(4, "it is a big-endian file, which kvchat does not support")
        if version not in (2, 3):
            raise self._error(
                4,
                f"it has GGUF version {version}, but only 2 and 3 are supported: download a "
                "newer file",
            )

    def _count(self, what: str, limit: int) -> int:
        at, count = self.at, self._integer(U64)
        if count > limit:
            raise self._error(at, f"it declares {count} {what}; the limit is {limit}")
        return count

    def _key(self) -> None:
        start = self.at
        key = self._string("the name of a key", MAX_KEY_BYTES)
        if not key:
            raise self._error(start, "a key has no name")
        if key in self._values or key in self._lengths:
            raise self._error(start, f"the key {key!r} appears twice")
        number = self._integer(U32)
        if number == ARRAY:
            self._array(key)
        else:
            self._values[key] = self._value(number, f"the value of {key!r}")
        if key == "general.alignment":
            value = self._values.get(key, "an array")
            is_power = type(value) is int and 0 < value <= MAX_ALIGNMENT and not value & (value - 1)
            if not is_power or number != 4:
                raise self._error(start, f"the alignment is {value!r}, not a 32-bit power of two")

    def _value(self, number: int, what: str) -> Scalar:
        if number != STRING:
            return self.unpack(self._form(number, what))[0]
        start = self.at
        text = self._string(what, MAX_TEXT_BYTES)
        self._add(start, "bytes of text", self.at - start, MAX_TEXT_BYTES)
        return text

    def _array(self, key: str) -> None:
        number, what = self._integer(U32), f"an element of {key!r}"
        is_text = number == STRING
        form = U64 if is_text else self._form(number, what)
        at, length = self.at, self._integer(U64)
        if length * form.size > self.nbytes - self.at:
            raise self._error(
                at, f"the array {key!r} declares {length} elements, more than the file has"
            )
        self._lengths[key] = length
        start = self.at
        if length <= MAX_STORED_ELEMENTS:
            self._add(start, "array elements", length, MAX_ELEMENTS_OF_ALL)
            self._values[key] = tuple(self._value(number, what) for _ in range(length))
        elif is_text:
            self._add(start, "strings in arrays", length, MAX_STRINGS)
            data, size, unpack_from = self.data, U64.size, U64.unpack_from
            end = start
            for _ in range(length):
                if end + size > len(data):
                    self._reach(end + size, start)
                end += size + unpack_from(data, end)[0]
            self.at = end
        else:
            self.at += length * form.size
        self._check_end(self.at, at)
        if is_text:
            self._spans[key] = (start, self.at)

    def _add(self, at: int, what: str, n_more: int, limit: int) -> None:
        self._totals[what] += n_more
        if self._totals[what] > limit:
            raise self._error(
                at, f"it has {self._totals[what]} {what} in total; the limit is {limit}"
            )

    def _tensor(self, start: int) -> TensorInfo:
        name = self._string("the name of a tensor", MAX_TENSOR_NAME_BYTES)
        n_dimensions = self._integer(U32)
        if n_dimensions > MAX_DIMENSIONS:
            raise self._error(
                start, f"tensor {name!r} has {n_dimensions} dimensions; the limit is 4"
            )
        *dimensions, number, offset = map(int, self.unpack(TENSOR_ROWS[n_dimensions]))
        shape, kind = tuple(dimensions) or (1,), ggml_type(number, name, self.at - 12)
        n_elements = prod(shape)
        if not all(shape) or n_elements > MAX_TENSOR_ELEMENTS:
            raise self._error(start, f"tensor {name!r} has the impossible shape {shape}")
        if shape[0] % kind.block_size:
            raise self._error(
                start,
                f"tensor {name!r} has rows of {shape[0]} elements, not a multiple of "
                f"{kind.block_size}",
            )
        return TensorInfo(name, shape, kind, offset, kind.row_bytes(n_elements))

    def _form(self, number: int, what: str) -> struct.Struct:
        if number not in FORMS:
            raise self._error(
                self.at - 4, f"{what} has the type {number}, which GGUF does not define"
            )
        return FORMS[number]

    def _string(self, what: str, limit: int) -> str:
        at, length = self.at, self._integer(U64)
        if length > min(limit, self.nbytes - self.at):
            why = f"; the limit is {limit}"
            if length > self.nbytes - self.at:
                why = ", more than the file has"
            raise self._error(at, f"{what}: a string declares {length} bytes{why}")
        start, self.at = self.at, self.at + length
        self._reach(self.at, at)
        return self.data[start : self.at].decode("utf-8", "replace")

    def _integer(self, form: struct.Struct) -> int:
        return int(self.unpack(form)[0])


def _check_data(file: GgufFile) -> None:
    """Check that each tensor starts at the next aligned byte after the one before."""
    name, alignment, expected = file.path.name, file.alignment, 0
    for tensor in file.tensors:
        if tensor.offset != expected:
            raise ModelFileError(
                f"{name} is damaged: tensor {tensor.name!r} starts at byte {tensor.offset} of "
                f"the data instead of byte {expected}; tensors must follow each other without "
                f"gaps and start at multiples of {alignment}"
            )
        end = file.data_start + tensor.offset + tensor.nbytes
        if end > file.nbytes:
            raise ModelFileError(
                f"{name} is truncated: tensor {tensor.name!r} ends at byte {end}, but the "
                f"file has {file.nbytes} bytes; download the file again"
            )
        expected += -(-tensor.nbytes // alignment) * alignment


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a model, of every part if it is split.

    Raises `ModelFileError` for a file that is missing, truncated, absurd or of an unknown format,
    with the byte and the reason.
    """
    asked = read_part(path)
    names = part_names(asked)
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise ModelFileError(
            f"{path.name} is part of a model in {len(names)} parts: put all parts into one folder "
            f"({len(missing)} missing: {', '.join(missing[:3])})"
        )
    return join_parts(asked, lambda name: read_part(path.with_name(name)))


def read_part(path: Path) -> GgufFile:
    """Read the header of one file of a model; raises as `read_gguf`."""
    try:
        with open_file(path) as file:

            def more(start: int, stop: int) -> bytes:
                file.seek(start)
                return file.read(stop - start) or b""

            return HeaderReader(path, path.stat().st_size, more).read()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be opened: {reason_of(error)}") from error


def join_parts(asked: GgufFile, read: Callable[[str], GgufFile]) -> GgufFile:
    """Join a part with the others of its model, which `read` reads by their names."""
    names = part_names(asked)
    if not names:
        return asked
    parts = [asked if name == asked.path.name else read(name) for name in names]
    _check_parts(parts)
    return replace(
        parts[0],
        tensors=tuple(tensor for part in parts for tensor in part.tensors),
        nbytes=sum(part.nbytes for part in parts),
        paths=tuple(part.path for part in parts),
        header_sizes=tuple(part.header_sizes[0] for part in parts),
    )


def part_names(part: GgufFile) -> list[str]:
    """The file names of all parts of a split model; empty for a single file."""
    count = part.integer("split.count") or 1
    if count <= 1:
        return []
    split = SPLIT_NAME.match(part.path.name)
    if split is None or int(split["count"]) != count or count > MAX_PARTS:
        raise ModelFileError(
            f"{part.path.name} is part of a model in {count} parts, but its name lacks the ending "
            f"-NNNNN-of-{count:05d}.gguf: rename all parts to their original names"
        )
    return names_of_parts(split)


def names_of_parts(split: re.Match[str]) -> list[str]:
    """The file names of all parts, from the name of one that `SPLIT_NAME` matched."""
    n_parts = int(split["count"])
    return [f"{split['stem']}-{n:05}-of-{n_parts:05}.gguf" for n in range(1, n_parts + 1)]


def _check_parts(parts: Sequence[GgufFile]) -> None:
    count = len(parts)
    for index, part in enumerate(parts):
        values = part.values
        if values.get("split.count") != count or values.get("split.no", index) != index:
            raise ModelFileError(
                f"according to its header, {part.path.name} is part "
                f"{values.get('split.no', index)} (counted from 0) of "
                f"{values.get('split.count', 1)}, not part {index} of {count}: "
                "the parts are mixed up"
            )
    names = [tensor.name for part in parts for tensor in part.tensors]
    claimed = parts[0].values.get("split.tensors.count", len(names))
    if not claimed == len(names) == len(set(names)):
        raise ModelFileError(
            f"{parts[0].path.name} declares {claimed} tensors, but its {count} parts contain "
            f"{len(names)} ({len(set(names))} different names): the parts do not match"
        )


def cached_by_header(
    most: int,
) -> Callable[[Callable[Concatenate[GgufFile, P], R]], Callable[Concatenate[GgufFile, P], R]]:
    """Cache `most` values for each of the newest models."""

    def decorate(
        function: Callable[Concatenate[GgufFile, P], R],
    ) -> Callable[Concatenate[GgufFile, P], R]:
        @lru_cache(MAX_CACHED_MODELS)
        def of_file(file: GgufFile) -> Callable[..., R]:
            return lru_cache(most)(partial(function, file))

        @wraps(function)
        def answer(file: GgufFile, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return of_file(file)(*args, **kwargs)

        return answer

    return decorate


class HeaderKeys:
    """Reads `{architecture}.{key}`; raises `ModelFileError` for impossible values."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.name = file.architecture
        self.family = family_of(self.name)

    def has(self, key: str) -> bool:
        return f"{self.name}.{key}" in self.file.values

    def optional(self, key: str, default: int) -> int:
        """A number, or the default; never below zero."""
        value = self.file.integer(f"{self.name}.{key}")
        if value is not None and value > MAX_VALUE:
            raise self.damaged(f"has {self.name}.{key} = {value}")
        return default if value is None else max(0, value)

    def positive(self, key: str) -> int:
        """A required number above zero."""
        value = self.file.integer(f"{self.name}.{key}")
        if value is None or not 0 < value <= MAX_VALUE:
            raise ModelFileError(
                f"{self.file.path.name} has no usable {self.name}.{key} (found {value}): "
                "the header is incomplete, or this is not a language model"
            )
        return value

    def per_layer(self, key: str, n_layers: int, default: list[int]) -> list[int]:
        """A scalar or per-layer key for each layer."""
        array = self.file.integers(f"{self.name}.{key}")
        if array is None:
            return [self.optional(key, -1)] * n_layers if self.has(key) else default
        if len(array) < n_layers or any(not 0 <= value <= MAX_VALUE for value in array):
            raise self.damaged(
                f"has {len(array)} values of {self.name}.{key} for {n_layers} layers, "
                "or invalid values"
            )
        return list(array[:n_layers])

    def flags(self, key: str, n_layers: int) -> list[bool] | None:
        """A per-layer array of flags; None if the key has no array of enough values."""
        array = self.file.integers(f"{self.name}.{key}")
        if array is None or len(array) < n_layers:
            return None
        return [bool(flag) for flag in array[:n_layers]]

    def damaged(self, what: str) -> ModelFileError:
        """The error of an impossible header."""
        return ModelFileError(f"{self.file.path.name} {what}: the header is damaged")
