"""Writes catalogue models as GGUF files without data, and checks that llama.cpp takes them.

    ../.venv/bin/python accuracy_models.py FOLDER [NAME ...] [--quantization Q4_K_M] [--check]

A file has the real keys, the real tensor table and a vocabulary of the real length; its data is a
hole that takes no disk. With `--check` each is loaded in a dry run.
"""

import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import click

from engine.configuration import Configuration
from engine.errors import EngineError
from engine.memory.dry_run import DryRun
from engine.model.catalog import CatalogEntry, entries, find_entry
from engine.model.ggml import TYPE_NUMBERS
from engine.model.gguf import DEFAULT_ALIGNMENT, TensorInfo, Value

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
NORMAL, CONTROL = 1, 3
WIDE_KEYS = ("ple.head_offsets", "ple.head_vocab_sizes", "ple.layer_multipliers")
"""Keys whose integers have 64 bits in a file."""

SPECIAL = ("<s>", "</s>", "<unk>", "<|endoftext|>")
"""Tokens that llama.cpp looks for by their text in some models."""


def write_header(
    entry: CatalogEntry, quantization: str, folder: Path, *, with_vocabulary: bool = True
) -> Path:
    """Write a model's header and a hole in place of its data; give the file's path.

    Without vocabulary it names the length alone, and is written and read in a moment.

    Raises:
        ModelFileError: a quantisation that is not known.
    """
    file = entry.header(quantization)
    path = folder / file.path.name
    write_file(path, file.values, file.tensors, entry.n_vocab, with_vocabulary=with_vocabulary)
    return path


def write_file(
    path: Path,
    values: Mapping[str, Value],
    tensors: Sequence[TensorInfo],
    n_vocab: int,
    *,
    with_vocabulary: bool = True,
) -> None:
    """Write keys, a vocabulary of that length, the tensor table, and a hole in place of data."""
    if with_vocabulary:
        values = {**values, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "default"}
    else:
        length = f"{values['general.architecture']}.vocab_size"
        values = {**values, "tokenizer.ggml.model": "none", length: n_vocab}
    pairs = [
        _text(key) + _typed(value, is_wide=key.endswith(WIDE_KEYS)) for key, value in values.items()
    ]
    pairs += _vocabulary(n_vocab) if with_vocabulary else ()
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    data += b"".join(_tensor(tensor) for tensor in tensors)
    start = -(-len(data) // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
    with path.open("wb") as out:
        out.write(data)
        out.truncate(start + max((tensor.offset + tensor.nbytes for tensor in tensors), default=0))


def _tensor(tensor: TensorInfo) -> bytes:
    n_dimensions = len(tensor.shape)
    return (
        _text(tensor.name)
        + struct.pack(f"<I{n_dimensions}Q", n_dimensions, *tensor.shape)
        + struct.pack("<IQ", TYPE_NUMBERS[tensor.type.name], tensor.offset)
    )


@lru_cache(maxsize=8)
def _vocabulary(n_vocab: int) -> tuple[bytes, ...]:
    return tuple(_vocabulary_keys(n_vocab))


def _vocabulary_keys(n_vocab: int) -> Iterator[bytes]:
    """The keys of a vocabulary of that length: special ones, then made-up words."""
    n_words = n_vocab - len(SPECIAL)
    yield _text("tokenizer.ggml.tokens") + _texts([*SPECIAL, *map(_word, range(n_words))])
    kinds = [CONTROL] * len(SPECIAL) + [NORMAL] * n_words
    head = struct.pack("<IIQ", ARRAY, I32, n_vocab)
    yield _text("tokenizer.ggml.token_type") + head + struct.pack(f"<{n_vocab}i", *kinds)
    yield _text("tokenizer.ggml.merges") + _texts(["a b"])
    yield _text("tokenizer.ggml.bos_token_id") + _typed(0)
    yield _text("tokenizer.ggml.eos_token_id") + _typed(1)


def _word(index: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    word = ""
    number = index
    while True:
        word = letters[number % 26] + word
        number = number // 26 - 1
        if number < 0:
            return word


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _texts(values: Sequence[str]) -> bytes:
    return struct.pack("<IIQ", ARRAY, STRING, len(values)) + b"".join(map(_text, values))


def _typed(value: Value, *, is_wide: bool = False) -> bytes:
    match value:
        case tuple():
            kind = U64 if is_wide else _kind(value[0])
            items = b"".join(_plain(item, kind) for item in value)
            return struct.pack("<IIQ", ARRAY, kind, len(value)) + items
        case _:
            kind = _kind(value)
            return struct.pack("<I", kind) + _plain(value, kind)


def _kind(value: Value) -> int:
    match value:
        case bool():
            return BOOL
        case int():
            return U32 if value >= 0 else I32
        case float():
            return F32
        case _:
            return STRING


def _plain(value: Value, kind: int) -> bytes:
    if kind == STRING:
        return _text(str(value))
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}[kind], value)


def check(path: Path, dry_run: DryRun) -> str:
    """llama.cpp's result for a file: the bytes of its cache, or why it refuses the file."""
    configuration = Configuration(model_path=path, n_ctx=4096, n_gpu_layers=0)
    try:
        buffers = dry_run.measure(configuration)
    except EngineError as error:
        return f"REFUSED {error}"
    cached = sum(buffer.nbytes for buffer in buffers if buffer.kind in ("KV", "RS"))
    return f"ok, cache and state {cached / 2**20:.1f} MiB"


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("names", nargs=-1)
@click.option("--quantization", default="Q4_K_M", show_default=True)
@click.option("--check", "is_checked", is_flag=True, help="Load each file in a dry run.")
def main(folder: Path, names: tuple[str, ...], quantization: str, is_checked: bool) -> None:
    """Write catalogue models as files without data."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [find_entry(name) for name in names] or list(entries())
    n_refused = 0
    with DryRun() as dry_run:
        for entry in chosen:
            path = write_header(entry, quantization, folder)
            answer = check(path, dry_run) if is_checked else "written"
            n_refused += answer.startswith("REFUSED")
            n_parameters = entry.n_parameters / 1e9
            size = f"{entry.header(quantization).nbytes / 1e9:7.2f} GB"
            click.echo(
                f"{entry.name:24} {entry.architecture:14} {n_parameters:8.3f}B {size}  {answer}"
            )
    click.echo(f"{len(chosen) - n_refused} of {len(chosen)} files")
    sys.exit(n_refused > 0)


if __name__ == "__main__":
    main()
