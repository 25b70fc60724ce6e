"""A GGUF model: what its header says, of all its files where it is split.

Only the header is read, and vocabularies leave only their length.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from engine.errors import ModelFileError
from engine.files import open_file
from engine.model.architectures import family_of
from engine.model.ggml_types import FILE_TYPES
from engine.model.gguf_header import (
    Header,
    HeaderBytes,
    TensorInfo,
    Value,
    read_header,
)

MAX_PARTS = 1000
SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.DOTALL)
MAX_LAYERS = 10_000
"""More than llama.cpp takes (512) by far, and few enough to count."""
MAX_VALUE = 2**40
"""Larger lengths are damage: no product of two of them can be a memory size."""
MOST_HEADERS = 8
"""Models whose headers, and answers about them, stay in memory."""
P = ParamSpec("P")
R = TypeVar("R")


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
    header_sizes: tuple[int, ...] = ()
    """Bytes of the header of each file, without padding; empty where no file was read."""
    origin: str | None = None
    """Where the header comes from when the file is not on this machine: an address, or the
    catalogue; `path` is then only what the file is called."""
    weights_spread: float = 0.0
    """How far the sizes of the tensors may be from those of the file that is meant, as a part; 0
    where the tensor table is the file's own."""
    string_spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """First byte of the strings of each array of strings in the first file, and the byte behind."""

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
        """An integer; None where the key is missing or no integer."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, key: str) -> str | None:
        """A string; None where the key is missing or no string."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def integers(self, key: str) -> tuple[int, ...] | None:
        """An array of integers or booleans; None where the key is missing or no such array."""
        value = self.values.get(key)
        if not isinstance(value, tuple):
            return None
        numbers = tuple(int(item) for item in value if isinstance(item, int))
        return numbers if len(numbers) == len(value) else None


@dataclass(frozen=True, slots=True)
class GgufPart:
    """One file of a model and its header."""

    path: Path
    header: Header
    nbytes: int


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a model, of every part where it is split.

    Raises:
        ModelFileError: the file is missing, truncated, absurd or of an unknown kind; the message
            says at which byte and why.
    """
    asked = read_part(path)
    names = part_names(asked)
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise ModelFileError(
            f"{path.name} is one of {len(names)} files and {len(missing)} are missing: "
            f"{', '.join(missing[:3])}; put all parts into one folder"
        )
    return read_parts(asked, lambda name: read_part(path.with_name(name)))


def read_parts(asked: GgufPart, read: Callable[[str], GgufPart]) -> GgufFile:
    """Join a part with the other parts of its model, which `read` gives by their file name.

    Raises:
        ModelFileError: parts are missing, wrongly named, or of different models.
    """
    names = part_names(asked)
    if not names:
        return _joined([asked])
    parts = [asked if name == asked.path.name else read(name) for name in names]
    _check_parts(parts)
    return _joined(parts)


def part_names(part: GgufPart) -> list[str]:
    """The file names of all parts of a split model; none where it is one file.

    Raises:
        ModelFileError: the name does not say which part of how many it is.
    """
    count = part.header.values.get("split.count", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count <= 1:
        return []
    match = SPLIT_NAME.match(part.path.name)
    if match is None or int(match["count"]) != count or count > MAX_PARTS:
        raise ModelFileError(
            f"{part.path.name} is one part of a model split in {count}, but its name does not end "
            f"in -00001-of-{count:05d}.gguf: restore the names of the parts"
        )
    return [f"{match['stem']}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1)]


def read_part(path: Path) -> GgufPart:
    """One file of a model, alone.

    Raises:
        ModelFileError: it is missing, truncated, absurd or of an unknown kind.
    """
    try:
        with open_file(path) as file:
            nbytes = path.stat().st_size

            def more(start: int, stop: int) -> bytes:
                file.seek(start)
                return file.read(stop - start) or b""

            return GgufPart(path, read_header(HeaderBytes(path.name, nbytes, more)), nbytes)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be opened: {error.strerror or error}") from error


class HeaderKeys:
    """Reads `{architecture}.{key}`."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.name = file.architecture
        self.family = family_of(self.name)

    def has(self, key: str) -> bool:
        """Whether the header holds the key."""
        return f"{self.name}.{key}" in self.file.values

    def optional(self, key: str, default: int) -> int:
        """A number, or the default where there is none; never below zero.

        Raises:
            ModelFileError: the number is too large to be true.
        """
        value = self.file.integer(f"{self.name}.{key}")
        if value is not None and value > MAX_VALUE:
            raise ModelFileError(
                f"{self.file.path.name} has {self.name}.{key} = {value}: the header is damaged"
            )
        return default if value is None else max(0, value)

    def positive(self, key: str) -> int:
        """A number above zero.

        Raises:
            ModelFileError: it is missing, or not a number above zero.
        """
        value = self.file.integer(f"{self.name}.{key}")
        if value is None or not 0 < value <= MAX_VALUE:
            raise ModelFileError(
                f"{self.file.path.name} has no usable {self.name}.{key} (found {value}): "
                "the header is incomplete, or this is not a language model"
            )
        return value

    def n_blocks(self) -> int:
        """The number of blocks, those of a next-token head among them."""
        n_blocks = self.positive("block_count")
        if n_blocks > MAX_LAYERS:
            raise ModelFileError(
                f"{self.file.path.name} claims {n_blocks} layers; the limit is {MAX_LAYERS}"
            )
        return n_blocks

    def per_layer(self, key: str, n_layers: int, default: list[int] | None = None) -> list[int]:
        """A scalar or per-layer key for each layer; without a default it is needed.

        Raises:
            ModelFileError: it is missing, or has too few values.
        """
        array = self.file.integers(f"{self.name}.{key}")
        if array is not None:
            if len(array) < n_layers or any(not 0 <= value <= MAX_VALUE for value in array):
                raise ModelFileError(
                    f"{self.file.path.name} has {len(array)} values of {self.name}.{key} for "
                    f"{n_layers} layers, or impossible ones: the header is damaged"
                )
            return list(array[:n_layers])
        if default is None:
            return [self.positive(key)] * n_layers
        return [self.optional(key, -1)] * n_layers if self.has(key) else default

    def flags(self, key: str, n_layers: int) -> list[bool] | None:
        """A per-layer array of flags; None where the key is no array of enough values."""
        array = self.file.integers(f"{self.name}.{key}")
        if array is None or len(array) < n_layers:
            return None
        return [bool(flag) for flag in array[:n_layers]]


def _check_parts(parts: Sequence[GgufPart]) -> None:
    count = len(parts)
    for index, part in enumerate(parts):
        values = part.header.values
        if values.get("split.count") != count or values.get("split.no", index) != index:
            raise ModelFileError(
                f"{part.path.name} is by its header part {values.get('split.no', index)} (from 0) "
                f"of {values.get('split.count', 1)}, not part {index} of {count}: the parts are "
                "mixed up"
            )
    names = [tensor.name for part in parts for tensor in part.header.tensors]
    claimed = parts[0].header.values.get("split.tensors.count", len(names))
    if claimed != len(names):
        raise ModelFileError(
            f"{parts[0].path.name} declares {claimed} tensors in {count} parts, which hold "
            f"{len(names)}: they belong to different models"
        )
    if len(set(names)) != len(names):
        raise ModelFileError(
            f"two of the {count} parts of {parts[0].path.name} hold the same tensor: they "
            "belong to different models"
        )


def _joined(parts: Sequence[GgufPart]) -> GgufFile:
    first = parts[0]
    return GgufFile(
        path=first.path,
        version=first.header.version,
        values=first.header.values,
        array_lengths=first.header.array_lengths,
        tensors=tuple(tensor for part in parts for tensor in part.header.tensors),
        nbytes=sum(part.nbytes for part in parts),
        paths=tuple(part.path for part in parts),
        header_sizes=tuple(part.header.nbytes for part in parts),
        string_spans=first.header.string_spans,
    )


def cached_by_header(
    most: int,
) -> Callable[[Callable[Concatenate[GgufFile, P], R]], Callable[Concatenate[GgufFile, P], R]]:
    """Keep answers about a header, `most` for each of the newest models."""

    def decorate(
        function: Callable[Concatenate[GgufFile, P], R],
    ) -> Callable[Concatenate[GgufFile, P], R]:
        kept: dict[GgufFile, dict[object, R]] = {}

        @wraps(function)
        def answer(file: GgufFile, /, *args: P.args, **kwargs: P.kwargs) -> R:
            own = kept.pop(file, {})
            kept[file] = own
            key = (args, *kwargs.items())
            if key in own:
                return own[key]
            found = function(file, *args, **kwargs)
            for other in list(kept)[:-MOST_HEADERS]:
                kept.pop(other, None)
            for oldest in list(own)[: max(len(own) + 1 - most, 0)]:
                own.pop(oldest, None)
            own[key] = found
            return found

        return answer

    return decorate
