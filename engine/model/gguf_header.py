"""Walks through the header of one GGUF file: keys, then the tensor table.

The format is that of ggml's `docs/gguf.md`, versions 2 and 3; what ggml's own reader refuses
(`ggml/src/gguf.cpp` of llama.cpp 0c1e57098) is refused here too. Arrays longer than
`KEPT_ELEMENTS` are stepped over and leave only their length. Nothing that a header claims is
believed before the bytes for it are there, so a broken one costs neither memory nor time.
"""

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod

from engine.errors import ModelFileError
from engine.model.ggml_types import GgmlType, ggml_type

MAGIC = b"GGUF"
SWAPPED_MAGIC = b"FUGG"
LEAST_BYTES = 24
KEPT_ELEMENTS = 4096
MAX_KEYS = 16_384
MAX_TENSORS = 65_536
MAX_KEY_BYTES = 65_535
MAX_TENSOR_NAME_BYTES = 63
"""ggml's `GGML_MAX_NAME` without the closing zero."""
MAX_KEPT_ELEMENTS = 262_144
"""Elements of all kept arrays together: models have a few thousand."""
MAX_TEXT_BYTES = 16 << 20
"""All strings that are kept, together: chat templates have up to 100 KiB."""
MAX_STRINGS = 1 << 22
"""Strings that are stepped over, in all arrays: the largest vocabularies have 262,144."""
MAX_ALIGNMENT = 1 << 20
MAX_DIMENSIONS = 4
MAX_ELEMENTS = (1 << 63) - 1
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
MAX_HEADER_BYTES = 64 << 20
"""Headers that are known take up to 20 MiB."""
BLOCK = 256
"""Strings that one match steps over."""
USUAL_LENGTHS = (5, 6, 7, 4, 8, 3, 9, 10, 2, 1, 12, 11, 13, 14, 15, 16)
"""Most frequent first: the order in which the pattern tries them."""
MAX_SHORT = 63
"""Longest string of the pattern; blocks with a longer one are walked through."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table; `nbytes` is without padding."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int
    """From the start of the data section of its file."""
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """What one file says before its data begin."""

    version: int
    values: Mapping[str, Value]
    array_lengths: Mapping[str, int]
    """Lengths of arrays, kept or stepped over."""
    tensors: tuple[TensorInfo, ...]
    nbytes: int
    """Bytes of keys and tensor table, without the padding before the data."""
    string_spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """First byte of the strings of each array of strings, and the byte behind them."""

    @property
    def alignment(self) -> int:
        """What every tensor's place is a multiple of."""
        value = self.values.get("general.alignment")
        return value if isinstance(value, int) else DEFAULT_ALIGNMENT

    @property
    def data_start(self) -> int:
        """The byte that offsets of tensors count from."""
        return -(-self.nbytes // self.alignment) * self.alignment


@dataclass(slots=True)
class HeaderBytes:
    """What is there of a file: bytes from its start on, never more than a header can have."""

    name: str
    """What errors call the file."""
    nbytes: int
    """Size of the whole file."""
    more: Callable[[int, int], bytes]
    """The bytes from one index up to another; fewer than asked where the file ends."""
    chunk_bytes: int = CHUNK_BYTES
    """How much is asked for at once."""
    data: bytearray = field(default_factory=bytearray)

    def check(self, end: int, at: int) -> None:
        """Refuse a header that reaches as far as `end` and cannot.

        Raises:
            ModelFileError: the file ends before, or the header is longer than its limit; `at` is
                the byte that the message names.
        """
        if end > self.nbytes:
            raise self.error(at, "the header ends in the middle: the file is truncated")
        if end > MAX_HEADER_BYTES:
            size = f"{MAX_HEADER_BYTES >> 20} MiB"
            raise self.error(at, f"the header is longer than the limit of {size}")

    def reach(self, end: int, at: int) -> None:
        """Have every byte before `end`; raises as `check` does."""
        self.check(end, at)
        while len(self.data) < end:
            start = len(self.data)
            stop = min(max(end, start + self.chunk_bytes), self.nbytes, MAX_HEADER_BYTES)
            found = self.more(start, stop)
            if not found:
                raise self.error(start, f"the file ends here but had {self.nbytes} bytes before")
            self.data += found

    def error(self, at: int, why: str) -> ModelFileError:
        """The error that names file and byte."""
        return ModelFileError(f"{self.name} cannot be read at byte {at}: {why}")


def read_header(source: HeaderBytes) -> Header:
    """Read one header.

    Raises:
        ModelFileError: it is truncated, damaged, absurd or of an unknown kind; the message says at
            which byte and why.
    """
    return _Walk(source).read()


def after_strings(data: bytearray, at: int, count: int) -> tuple[int, int]:
    """Step over strings, each behind its length in eight bytes.

    A pattern that holds every short string takes half of the time that a loop takes.

    Args:
        data: The bytes that are there.
        at: Index of the first string.
        count: How many strings there are.

    Returns:
        The byte behind the last string that was stepped over, which may lie behind `data`, and how
        many strings the bytes did not reach.
    """
    match = _block().match
    while count >= BLOCK:
        found = match(data, at)
        if found is not None:
            at = found.end()
        else:
            at, n_left = _one_by_one(data, at, BLOCK)
            if n_left:
                return at, count - BLOCK + n_left
        count -= BLOCK
    return _one_by_one(data, at, count)


class _Walk:
    """`_at` is the byte that comes next."""

    def __init__(self, source: HeaderBytes) -> None:
        self._source = source
        self._at = 0
        self._values: dict[str, Value] = {}
        self._lengths: dict[str, int] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        self._n_kept = self._n_text_bytes = self._n_strings = 0

    def read(self) -> Header:
        version = self._version()
        n_tensors = self._count("tensors", MAX_TENSORS)
        n_keys = self._count("keys", MAX_KEYS)
        for _ in range(n_keys):
            self._key()
        tensors = self._tensors(n_tensors)
        header = Header(version, self._values, self._lengths, tensors, self._at, self._spans)
        self._check_data(header)
        return header

    def _version(self) -> int:
        source = self._source
        if source.nbytes < LEAST_BYTES:
            raise ModelFileError(
                f"{source.name} has {source.nbytes} bytes, too few for a GGUF file"
            )
        source.reach(LEAST_BYTES, 0)
        start = bytes(source.data[:4])
        if start == SWAPPED_MAGIC:
            raise source.error(0, "it is a big-endian file, which kvchat does not read")
        if start != MAGIC:
            raise ModelFileError(
                f"{source.name} starts with {start!r} and not with {MAGIC!r}: it is not a GGUF file"
            )
        self._at = 4
        version = self._integer(U32)
        if version & 0xFFFF == 0:
            raise source.error(4, "it is a big-endian file, which kvchat does not read")
        if version == 1:
            raise source.error(
                4, "it has version 1, which is no longer supported: download a newer file"
            )
        if version not in (2, 3):
            raise source.error(4, f"it has version {version}; versions 2 and 3 are supported")
        return version

    def _count(self, what: str, limit: int) -> int:
        at = self._at
        count = self._integer(U64)
        if count > limit:
            raise self._error(at, f"it claims {count} {what}; the limit is {limit}")
        return count

    def _key(self) -> None:
        start = self._at
        key = self._string("the name of a key", MAX_KEY_BYTES)
        if not key:
            raise self._error(start, "a key has no name")
        if key in self._values or key in self._lengths:
            raise self._error(start, f"the key {key!r} appears twice")
        number = self._integer(U32)
        if number == ARRAY:
            self._array(key)
        elif number == STRING:
            self._values[key] = self._text(f"the value of {key!r}")
        else:
            self._values[key] = self._unpack(self._form(number, key))
        if key == "general.alignment":
            self._check_alignment(start, number)

    def _array(self, key: str) -> None:
        number = self._integer(U32)
        is_text = number == STRING
        form = U64 if is_text else self._form(number, key)
        at = self._at
        length = self._integer(U64)
        if length * form.size > self._source.nbytes - self._at:
            raise self._error(
                at, f"the array {key!r} claims {length} elements, more than the file has"
            )
        self._lengths[key] = length
        start = self._at
        if length <= KEPT_ELEMENTS:
            self._values[key] = self._elements(key, length, None if is_text else form)
        elif is_text:
            self._step_over_strings(key, length)
        else:
            self._at += length * form.size
            self._source.check(self._at, at)
        if is_text:
            self._spans[key] = (start, self._at)

    def _elements(self, key: str, length: int, form: struct.Struct | None) -> tuple[Scalar, ...]:
        self._n_kept += length
        if self._n_kept > MAX_KEPT_ELEMENTS:
            raise self._error(
                self._at, f"with {key!r} its short arrays hold {self._n_kept} elements; "
                f"the limit is {MAX_KEPT_ELEMENTS}"
            )  # fmt: skip
        if form is None:
            return tuple(self._text(f"an element of {key!r}") for _ in range(length))
        return tuple(self._unpack(form) for _ in range(length))

    def _step_over_strings(self, key: str, count: int) -> None:
        start = self._at
        self._n_strings += count
        if self._n_strings > MAX_STRINGS:
            raise self._error(
                start, f"with {key!r} its lists hold {self._n_strings} strings; "
                f"the limit is {MAX_STRINGS}"
            )  # fmt: skip
        while count:
            self._at, count = after_strings(self._source.data, self._at, count)
            if self._at > self._source.nbytes:
                raise self._error(start, f"a string of the array {key!r} extends past the end")
            if count:
                self._source.reach(self._at + 8, start)

    def _tensors(self, count: int) -> tuple[TensorInfo, ...]:
        tensors: dict[str, TensorInfo] = {}
        for _ in range(count):
            start = self._at
            tensor = self._tensor(start)
            if tensor.name in tensors:
                raise self._error(start, f"the tensor {tensor.name!r} appears twice")
            tensors[tensor.name] = tensor
        return tuple(tensors.values())

    def _tensor(self, start: int) -> TensorInfo:
        name = self._string("the name of a tensor", MAX_TENSOR_NAME_BYTES)
        n_dimensions = self._integer(U32)
        if n_dimensions > MAX_DIMENSIONS:
            raise self._error(
                start, f"tensor {name!r} has {n_dimensions} dimensions; the limit is 4"
            )
        *shape_, number, offset = self._row(TENSOR_ROWS[n_dimensions])
        shape, kind = tuple(shape_) or (1,), ggml_type(number, name, self._at - 12)
        n_elements = prod(shape)
        if not all(shape) or n_elements > MAX_ELEMENTS:
            raise self._error(start, f"tensor {name!r} has the impossible shape {shape}")
        if shape[0] % kind.block_size:
            raise self._error(
                start,
                f"tensor {name!r} has rows of {shape[:1]}, not a multiple of {kind.block_size}",
            )
        return TensorInfo(name, shape, kind, offset, kind.row_bytes(n_elements))

    def _check_alignment(self, at: int, number: int) -> None:
        value = self._values.get("general.alignment", "an array")
        is_power = type(value) is int and 0 < value <= MAX_ALIGNMENT and not value & (value - 1)
        if not is_power or number != 4:
            raise self._error(at, f"the alignment is {value!r}, not a power of two of 32 bits")

    def _check_data(self, header: Header) -> None:
        """Tensors lie one behind the other, each at the next aligned byte."""
        name, size = self._source.name, self._source.nbytes
        start, alignment = header.data_start, header.alignment
        expected = 0
        for tensor in header.tensors:
            if tensor.offset != expected:
                raise ModelFileError(
                    f"{name} is damaged: tensor {tensor.name!r} starts at byte {tensor.offset} of "
                    f"the data instead of {expected}, {_fault(tensor.offset, expected, alignment)}"
                )
            end = start + tensor.offset + tensor.nbytes
            if end > size:
                raise ModelFileError(
                    f"{name} is truncated: tensor {tensor.name!r} ends at byte {end} "
                    f"but the file has {size}; download it again"
                )
            expected += -(-tensor.nbytes // alignment) * alignment

    def _form(self, number: int, key: str) -> struct.Struct:
        form = FORMS.get(number)
        if form is None:
            kind = "an array in an array" if number == ARRAY else f"the value type {number}"
            raise self._error(self._at - 4, f"{key!r} has {kind}, which GGUF does not have")
        return form

    def _text(self, what: str) -> str:
        start = self._at
        text = self._string(what, MAX_TEXT_BYTES)
        self._n_text_bytes += self._at - start
        if self._n_text_bytes > MAX_TEXT_BYTES:
            raise self._error(start, f"with {what} its texts are longer than {MAX_TEXT_BYTES}")
        return text

    def _string(self, what: str, limit: int) -> str:
        at = self._at
        length = self._integer(U64)
        if length > self._source.nbytes - self._at:
            raise self._error(at, f"{what}: a string claims {length} bytes, too many for the file")
        if length > limit:
            raise self._error(at, f"{what}: a string claims {length} bytes; the limit is {limit}")
        end = self._at + length
        if end > len(self._source.data):
            self._source.reach(end, at)
        text = self._source.data[self._at : end].decode("utf-8", "replace")
        self._at = end
        return text

    def _integer(self, form: struct.Struct) -> int:
        return int(self._unpack(form))

    def _row(self, form: struct.Struct) -> tuple[int, ...]:
        end = self._at + form.size
        if end > len(self._source.data):
            self._source.reach(end, self._at)
        row: tuple[int, ...] = form.unpack_from(self._source.data, self._at)
        self._at = end
        return row

    def _unpack(self, form: struct.Struct) -> Scalar:
        end = self._at + form.size
        source = self._source
        if end > len(source.data):
            source.reach(end, self._at)
        value: Scalar = form.unpack_from(source.data, self._at)[0]
        self._at = end
        return value

    def _error(self, at: int, why: str) -> ModelFileError:
        return self._source.error(at, why)


def _fault(offset: int, expected: int, alignment: int) -> str:
    if offset % alignment:
        return f"not a multiple of {alignment}"
    return "so two tensors overlap" if offset < expected else "so there is a gap"


def _one_by_one(data: bytearray, at: int, count: int) -> tuple[int, int]:
    # A length is looked up in one of eight views, by the residue of its index: unpacking takes
    # longer. The views read as this machine does, which is little-endian wherever kvchat runs.
    with memoryview(data) as whole:
        views = [whole[shift : shift + (len(whole) - shift) // 8 * 8] for shift in range(8)]
        lengths = [view.cast("Q") for view in views]
        n_left = count
        try:
            for n_left in range(count, 0, -1):  # noqa: B007  told when the bytes end
                at += 8 + lengths[at & 7][at >> 3]
        except IndexError:
            return at, n_left
        finally:
            for view in (*lengths, *views):
                view.release()
    return at, 0


@cache
def _block() -> re.Pattern[bytes]:
    """The pattern of a block: never tried another way once a string has matched."""
    others = [length for length in range(MAX_SHORT + 1) if length not in USUAL_LENGTHS]
    zeros = re.escape(bytes(7))
    strings = (
        re.escape(bytes([length])) + zeros + b".{%d}" % length
        for length in (*USUAL_LENGTHS, *others)
    )
    return re.compile(b"(?:" + b"|".join(strings) + b"){%d}+" % BLOCK, re.DOTALL)
