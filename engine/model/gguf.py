"""The header of a GGUF file: its keys and its tensor table, read without the vocabulary.

The format is that of ggml's `docs/gguf.md`, versions 2 and 3. The file is mapped, never read:
arrays longer than `KEPT_ELEMENTS` are stepped over and leave only their length.
"""

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from engine.errors import ModelFileError
from engine.model.ggml_types import FILE_TYPES, GgmlType, ggml_type

MAGIC = b"GGUF"
KEPT_ELEMENTS = 4096
MAX_KEYS = 65_536
MAX_TENSORS = 1_000_000
MAX_NAME_BYTES = 65_535
MAX_ALIGNMENT = 1 << 20
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]

STRING, ARRAY = 8, 9
FORMATS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
SIZES = {number: struct.calcsize(form) for number, form in FORMATS.items()}


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
class GgufFile:
    """What the header of a model says, of all its files where it is split.

    Two are the same only if they are one object, so that what is computed from one can be kept.
    """

    path: Path
    version: int
    values: Mapping[str, Value]
    array_lengths: Mapping[str, int]
    """Lengths of arrays, kept or stepped over."""
    tensors: tuple[TensorInfo, ...]
    nbytes: int
    """Size of all files."""
    paths: tuple[Path, ...]

    @property
    def architecture(self) -> str:
        """Value of `general.architecture`, empty where the file has none."""
        return self.text("general.architecture") or ""

    @property
    def name(self) -> str:
        """Name that the file gives its model, else the file's own."""
        return self.text("general.name") or self.path.stem

    @property
    def file_type(self) -> str:
        """Quantisation as llama.cpp names it, such as `Q4_K_M`."""
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
        """Give an integer value, None where the key is missing or is none."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, key: str) -> str | None:
        """Give a string value, None where the key is missing or is none."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def integers(self, key: str) -> tuple[int, ...] | None:
        """Give an array of integers or booleans, None where the key is missing or is none."""
        value = self.values.get(key)
        return tuple(int(item) for item in value) if isinstance(value, tuple) else None


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a model, of every part where it is split.

    Raises:
        ModelFileError: the file is missing, truncated, absurd or of an unknown kind; the message
            says at which byte and why.
    """
    first = _read_one(path)
    count = first.integer("split.count") or 1
    if count == 1:
        return first
    match = SPLIT_NAME.match(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelFileError(
            f"{path.name} is one part of a model split in {count}, but its name does not end in "
            f"-00001-of-{count:05d}.gguf: give the parts their names back"
        )
    return _join(first, _split_paths(path, match, count))


def _split_paths(path: Path, match: re.Match[str], count: int) -> list[Path]:
    names = [f"{match['stem']}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1)]
    paths = [path.with_name(name) for name in names]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise ModelFileError(
            f"{path.name} is one of {count} files and {len(missing)} are missing: "
            f"{', '.join(missing[:3])}; put all parts into one folder"
        )
    return paths


def _join(asked: GgufFile, paths: list[Path]) -> GgufFile:
    parts = [asked if part == asked.path else _read_one(part) for part in paths]
    return GgufFile(
        path=paths[0],
        version=parts[0].version,
        values=parts[0].values,
        array_lengths=parts[0].array_lengths,
        tensors=tuple(tensor for part in parts for tensor in part.tensors),
        nbytes=sum(part.nbytes for part in parts),
        paths=tuple(paths),
    )


def _read_one(path: Path) -> GgufFile:
    try:
        with path.open("rb") as file:
            nbytes = path.stat().st_size
            if nbytes < 24:
                raise ModelFileError(
                    f"{path} has {nbytes} bytes: that is too short for a GGUF file"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Header(path, data).read()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be opened: {error.strerror or error}") from error


class _Header:
    """Walks through one file; `at` is the byte that comes next."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._at = 0
        self._values: dict[str, Value] = {}
        self._lengths: dict[str, int] = {}

    def read(self) -> GgufFile:
        version = self._version()
        n_tensors = self._count("tensors", MAX_TENSORS)
        n_keys = self._count("keys", MAX_KEYS)
        for _ in range(n_keys):
            self._key()
        tensors = tuple(self._tensor() for _ in range(n_tensors))
        self._check_data(tensors)
        return GgufFile(
            path=self._path,
            version=version,
            values=self._values,
            array_lengths=self._lengths,
            tensors=tensors,
            nbytes=self._size,
            paths=(self._path,),
        )

    def _version(self) -> int:
        if self._data[:4] != MAGIC:
            raise ModelFileError(
                f"{self._path.name} starts with {self._data[:4]!r} and not with {MAGIC!r}: "
                "it is no GGUF file"
            )
        self._at = 4
        version = self._integer("<I")
        if version & 0xFFFF == 0:
            raise self._error(4, "it is a big-endian file, which kvchat does not read")
        if version not in (2, 3):
            raise self._error(4, f"it has version {version}; versions 2 and 3 are read")
        return version

    def _count(self, what: str, limit: int) -> int:
        at = self._at
        count = self._integer("<Q")
        if count > limit:
            raise self._error(at, f"it claims {count} {what}; at most {limit} are believed")
        return count

    def _key(self) -> None:
        start = self._at
        key = self._string(MAX_NAME_BYTES)
        number = self._integer("<I")
        if key in self._values or key in self._lengths:
            raise self._error(start, f"the key {key!r} stands there twice")
        if number == ARRAY:
            self._array(key)
        elif number == STRING:
            self._values[key] = self._string(self._size)
        else:
            self._values[key] = self._unpack(self._format(number))
        if key == "general.alignment":
            self._check_alignment(start)

    @property
    def _alignment(self) -> int:
        value = self._values.get("general.alignment", DEFAULT_ALIGNMENT)
        return value if isinstance(value, int) else DEFAULT_ALIGNMENT

    def _array(self, key: str) -> None:
        number = self._integer("<I")
        at = self._at
        length = self._integer("<Q")
        is_text = number == STRING
        form = "" if is_text else self._format(number)
        least = 8 if is_text else SIZES[number]
        if length * least > self._size - self._at:
            raise self._error(
                at, f"the array {key!r} claims {length} elements, the file ends first"
            )
        self._lengths[key] = length
        if length <= KEPT_ELEMENTS:
            self._values[key] = tuple(
                self._string(self._size) if is_text else self._unpack(form) for _ in range(length)
            )
        elif is_text:
            self._skip_strings(length)
        else:
            self._at += length * SIZES[number]

    def _skip_strings(self, count: int) -> None:
        data, at, size = self._data, self._at, self._size
        read_length = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > size:
                raise self._error(at, "the file ends inside an array of strings")
            at += 8 + read_length(data, at)[0]
        if at > size:
            raise self._error(self._at, "a string of an array reaches behind the end of the file")
        self._at = at

    def _tensor(self) -> TensorInfo:
        start = self._at
        name = self._string(MAX_NAME_BYTES)
        n_dimensions = self._integer("<I")
        if n_dimensions > MAX_DIMENSIONS:
            raise self._error(
                start, f"tensor {name!r} has {n_dimensions} dimensions; 4 are possible"
            )
        shape = tuple(self._integer("<Q") for _ in range(n_dimensions))
        kind = ggml_type(self._integer("<I"), name, self._at - 4)
        offset = self._integer("<Q")
        if any(not 0 < n < 1 << 40 for n in shape):
            raise self._error(start, f"tensor {name!r} has the impossible shape {shape}")
        if shape and shape[0] % kind.block_size:
            raise self._error(
                start, f"tensor {name!r} has rows of {shape[0]}, no multiple of {kind.block_size}"
            )
        nbytes = kind.row_bytes(prod(shape))
        return TensorInfo(name, shape, kind, offset, nbytes)

    def _check_alignment(self, at: int) -> None:
        value = self._values.get("general.alignment", "an array")
        is_power = type(value) is int and 0 < value <= MAX_ALIGNMENT and not value & (value - 1)
        if not is_power:
            raise self._error(at, f"the alignment is {value!r}; it is a power of two")

    def _check_data(self, tensors: tuple[TensorInfo, ...]) -> None:
        alignment = self._alignment
        start = -(-self._at // alignment) * alignment
        for tensor in tensors:
            end = start + tensor.offset + tensor.nbytes
            if end > self._size:
                raise ModelFileError(
                    f"{self._path.name} is truncated: tensor {tensor.name!r} ends at byte {end} "
                    f"but the file has {self._size}; download it again"
                )
            if tensor.offset % alignment:
                raise ModelFileError(
                    f"{self._path.name} is damaged: tensor {tensor.name!r} starts at byte "
                    f"{tensor.offset} of the data, no multiple of {alignment}"
                )

    def _format(self, number: int) -> str:
        form = FORMATS.get(number)
        if form is None:
            kind = "an array in an array" if number == ARRAY else f"the value type {number}"
            raise self._error(self._at - 4, f"there is {kind}, which GGUF does not have")
        return form

    def _string(self, limit: int) -> str:
        at = self._at
        length = self._integer("<Q")
        if length > limit or length > self._size - self._at:
            raise self._error(
                at, f"a string claims {length} bytes, the file ends or the name is absurd"
            )
        end = self._at + length
        text = self._data[self._at : end].decode("utf-8", "replace")
        self._at = end
        return text

    def _integer(self, form: str) -> int:
        return int(self._unpack(form))

    def _unpack(self, form: str) -> Scalar:
        try:
            value: Scalar = struct.unpack_from(form, self._data, self._at)[0]
        except struct.error as error:
            raise self._error(self._at, "the header ends in the middle: it is truncated") from error
        self._at += struct.calcsize(form)
        return value

    def _error(self, at: int, why: str) -> ModelFileError:
        return ModelFileError(f"{self._path.name} cannot be read at byte {at}: {why}")
