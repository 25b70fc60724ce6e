import os
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from engine.errors import ModelFileError
from engine.model.ggml import GGML_TYPES
from engine.model.gguf import (
    CHUNK_BYTES,
    MAX_ELEMENTS_OF_ALL,
    MAX_STORED_ELEMENTS,
    HeaderReader,
    read_gguf,
)
from tests.support.gguf_files import header, llama_values, text, write

TENSORS = [("token_embd.weight", (64, 3), 0, 0), ("blk.0.attn_k.weight", (64, 32), 8, 768)]
LONG = MAX_STORED_ELEMENTS + 1
TENSOR_BYTES = 768 + 64 * 32 // 32 * 34


def test_keys_arrays_and_tensors_are_read(tmp_path: Path) -> None:
    values = llama_values(**{"llama.flag": True, "llama.scale": 0.5, "general.name": "Tiny"})
    file = read_gguf(write(tmp_path / "m.gguf", header(values, TENSORS), data_bytes=TENSOR_BYTES))
    assert (file.architecture, file.name) == ("llama", "Tiny")
    assert file.integer("llama.block_count") == 2
    assert file.integer("llama.flag") is None, "a flag is not a number"
    assert file.values["llama.scale"] == 0.5
    assert file.n_vocab == 3
    assert [tensor.nbytes for tensor in file.tensors] == [768, 64 * 34]
    assert file.nbytes == (tmp_path / "m.gguf").stat().st_size


@pytest.mark.model
def test_real_headers_are_read_as_by_llama_cpp(starter_path: Path, gemma_path: Path) -> None:
    starter, gemma = read_gguf(starter_path), read_gguf(gemma_path)
    assert (starter.file_type, starter.n_vocab, len(starter.tensors)) == ("Q4_1", 49152, 272)
    assert (gemma.file_type, gemma.n_vocab, gemma.architecture) == ("Q4_K_M", 262144, "gemma3")
    assert "<|im_start|>" in (starter.chat_template or "")


def test_long_arrays_leave_only_their_length(tmp_path: Path) -> None:
    long = ["word"] * (MAX_STORED_ELEMENTS + 1)
    numbers = [7] * (MAX_STORED_ELEMENTS + 1)
    values = llama_values(**{"tokenizer.ggml.tokens": long, "x.numbers": numbers, "x.last": 5})
    file = read_gguf(write(tmp_path / "m.gguf", header(values)))
    assert file.n_vocab == MAX_STORED_ELEMENTS + 1
    assert "tokenizer.ggml.tokens" not in file.values
    assert file.array_lengths["x.numbers"] == MAX_STORED_ELEMENTS + 1
    assert file.integer("x.last") == 5


def test_every_truncation_is_refused_with_the_place(tmp_path: Path) -> None:
    data = header(llama_values(), TENSORS)
    path = tmp_path / "cut.gguf"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(ModelFileError):
            read_gguf(path)


def test_a_half_downloaded_file_names_the_tensor_and_the_sizes(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", header(llama_values(), TENSORS), data_bytes=1000)
    with pytest.raises(ModelFileError, match=r"truncated: tensor 'blk\.0\.attn_k\.weight' ends"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04" + bytes(40), "it is not a GGUF file"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(40), "big-endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(40), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 10**6), "1000000 keys"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63), "a string declares"),
        (header({}) [:16] + struct.pack("<Q", 1) + text("k") + struct.pack("<IIQ", 9, 9, 1),
         "the type 9, which GGUF"),
        (header({})[:16] + struct.pack("<Q", 1) + text("k") + struct.pack("<IIQ", 9, 10, 2**62),
         "declares 4611686018427387904 elements"),
        (header({})[:16] + struct.pack("<Q", 1) + text("k") + struct.pack("<I", 77) + bytes(9),
         "the type 77, which GGUF"),
        (header(llama_values(**{"general.alignment": 48})), "power of two"),
        (header({}, [("t", (32,), 4, 0)]), "type 4 at byte 45, which llama.cpp no longer"),
        (header({}, [("t", (32,), 43, 0)]), "type 43 at byte 45, which is unknown"),
        (header({}, [("t", (33,), 8, 0)]), "not a multiple of 32"),
        (header({}, [("t", (0,), 0, 0)]), "impossible shape"),
        (header({}, [("t", (8, 8), 0, 5)]) + bytes(4096), "starts at byte 5 of"),
        (header({}, [("t", (8, 8), 0, 0), ("u", (8, 8), 0, 32)]) + bytes(4096), "of byte 256"),
        (header({}, [("t", (8, 8), 0, 64)]) + bytes(4096), "starts at byte 64 of"),
        (header({}, [("t", (8, 8), 0, 2**63)]) + bytes(4096), "starts at byte 9223372036854775808"),
        (header({}, [("t", (2**40, 2**40), 0, 0)]), "impossible shape"),
        (header({}, [("t", (), 8, 0)]), "not a multiple of 32"),
        (header({}, [("t", (8, 8, 8, 8, 8), 0, 0)]), "5 dimensions"),
        (header({}, [("t" * 64, (8,), 0, 0)]) + bytes(4096), "the limit is 63"),
        (header({}, [("t", (8,), 0, 0), ("t", (8,), 0, 32)]) + bytes(4096), "tensor 't' appears "
                      "twice"),
        (header({"": 1}), "a key has no name"),
        (header({})[:16] + struct.pack("<Q", 2) + (text("k") + struct.pack("<II", 4, 1)) * 2,
         "appears twice"),
        (header(llama_values(**{"general.alignment": [32] * 3})), "power of two"),
        (header(llama_values(**{"general.alignment": [32] * LONG})), "power of two"),
        (header({"general.alignment": True}), "the alignment is True"),
        (b"FUGG" + struct.pack(">I", 3) + bytes(40), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4"),
    ],
)  # fmt: skip
def test_damage_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        read_gguf(write(tmp_path / "bad.gguf", data))


def array_of(kind: int, length: int, data: bytes = b"") -> bytes:
    """A header with one array of a type, its elements as they are given."""
    start = header({})[:16] + struct.pack("<Q", 1) + text("k")
    return start + struct.pack("<IIQ", 9, kind, length) + data


@pytest.mark.parametrize("nbytes", [1 << 32, 1 << 40])
def test_a_huge_file_of_holes_is_refused_at_once(tmp_path: Path, nbytes: int) -> None:
    one_key = header({})[:16] + struct.pack("<Q", 1) + text("k")
    bombs = {
        "strings": (array_of(8, nbytes // 16), "limit is 4194304"),
        "numbers": (array_of(10, nbytes // 16), "limit of 64 MiB"),
        "text": (one_key + struct.pack("<IQ", 8, 1 << 31), "limit is 16777216"),
    }  # fmt: skip
    for name, (data, message) in bombs.items():
        path = write(tmp_path / f"{name}.gguf", data, data_bytes=nbytes)
        with pytest.raises(ModelFileError, match=message):
            read_gguf(path)


def test_many_short_arrays_are_not_stored_without_limit(tmp_path: Path) -> None:
    values = {
        f"k{n}": [1] * MAX_STORED_ELEMENTS
        for n in range(MAX_ELEMENTS_OF_ALL // MAX_STORED_ELEMENTS + 1)
    }
    with pytest.raises(ModelFileError, match="array elements in total"):
        read_gguf(write(tmp_path / "many.gguf", header(values)))


def test_many_long_texts_are_not_stored_without_limit(tmp_path: Path) -> None:
    values = {f"k{n}": "x" * (1 << 20) for n in range(17)}
    with pytest.raises(ModelFileError, match="bytes of text in total"):
        read_gguf(write(tmp_path / "long.gguf", header(values)))


@pytest.mark.parametrize("n_left", [0, 1, 7, 8])
def test_a_vocabulary_that_ends_early_is_refused_at_its_place(tmp_path: Path, n_left: int) -> None:
    strings = text("word") * (MAX_STORED_ELEMENTS + 1)
    last = struct.pack("<Q", 1)[:n_left]
    path = tmp_path / "short.gguf"
    path.write_bytes(array_of(8, MAX_STORED_ELEMENTS + 2, strings + last))
    with pytest.raises(ModelFileError, match="truncated"):
        read_gguf(path)


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 4096, CHUNK_BYTES])
def test_a_header_reads_the_same_in_pieces_of_any_size(chunk_bytes: int) -> None:
    words = ["", "a", "word", "x" * 300] * (MAX_STORED_ELEMENTS // 2)
    values = llama_values(**{"tokenizer.ggml.tokens": words, "llama.n": [7] * 5000, "z.last": 5})
    if chunk_bytes < 64:
        values = llama_values(**{"tokenizer.ggml.tokens": words[:50], "z.last": 5})
    whole = header(values, TENSORS)
    start = -(-len(whole) // 32) * 32
    asked: list[tuple[int, int]] = []

    def more(start: int, stop: int) -> bytes:
        asked.append((start, stop))
        return whole[start:stop]

    found = HeaderReader(Path("m"), start + TENSOR_BYTES, more, chunk_bytes).read()
    assert found.values["z.last"] == 5
    assert found.array_lengths["tokenizer.ggml.tokens"] == len(values["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    assert [tensor.name for tensor in found.tensors] == [name for name, *_ in TENSORS]
    assert found.header_sizes == (len(whole),)
    assert all(before[1] == after[0] for before, after in pairwise(asked)), "nothing twice"


def test_a_missing_or_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be opened"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="too few"):
        read_gguf(write(tmp_path / "empty.gguf", b""))
    with pytest.raises(ModelFileError, match="cannot be opened"):
        read_gguf(tmp_path)


def test_a_split_model_is_read_whole_and_refused_incomplete(tmp_path: Path) -> None:
    first = header({**llama_values(), "split.count": 2}, [("token_embd.weight", (64, 3), 0, 0)])
    second = header({"split.count": 2}, [("blk.0.attn_k.weight", (64, 32), 0, 0)])
    path = write(tmp_path / "m-00001-of-00002.gguf", first, data_bytes=768)
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf"):
        read_gguf(path)
    other = write(tmp_path / "m-00002-of-00002.gguf", second, data_bytes=8192)
    for asked in (path, other):
        file = read_gguf(asked)
        assert file.architecture == "llama"
        assert [t.name for t in file.tensors] == ["token_embd.weight", "blk.0.attn_k.weight"]
        assert len(file.paths) == 2


@pytest.mark.parametrize(
    ("changes", "tensor", "message"),
    [
        ({"split.no": 0}, "u", "is part 0"),
        ({"split.count": 3}, "u", "of 3, not part 1 of 2"),
        ({}, "t", "1 different names"),
        ({}, "u", "declares 9 tensors, but"),
    ],
)
def test_parts_of_different_models_are_not_joined(
    tmp_path: Path, changes: dict[str, object], tensor: str, message: str
) -> None:
    claim = {"split.tensors.count": 9} if "9" in message else {}
    values = {**llama_values(), "split.count": 2, "split.no": 0, **claim}
    first = header(values, [("t", (8,), 0, 0)])
    second = header({"split.count": 2, "split.no": 1, **changes}, [(tensor, (8,), 0, 0)])
    path = write(tmp_path / "m-00001-of-00002.gguf", first, data_bytes=64)
    write(tmp_path / "m-00002-of-00002.gguf", second, data_bytes=64)
    with pytest.raises(ModelFileError, match=message):
        read_gguf(path)


def test_type_sizes_are_those_of_the_installed_ggml() -> None:
    import ctypes

    import llama_cpp

    folder = Path(llama_cpp.__file__).parent / "lib"
    library = ctypes.CDLL(str(next(folder.glob("libggml-base.so*"))))
    library.ggml_type_size.restype = ctypes.c_size_t
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_name.restype = ctypes.c_char_p
    for number, kind in GGML_TYPES.items():
        assert library.ggml_type_name(number).decode() == kind.name
        assert library.ggml_blck_size(number) == kind.block_size
        assert library.ggml_type_size(number) == kind.block_bytes


@pytest.mark.parametrize("name", ["renamed.gguf", "m-00001-of-00002.gguf"])
def test_a_part_under_another_name_is_no_whole_model(tmp_path: Path, name: str) -> None:
    data = header(llama_values(**{"split.count": 40_000_000}))
    with pytest.raises(ModelFileError, match="in 40000000 parts"):
        read_gguf(write(tmp_path / name, data))


def test_a_tensor_of_no_dimensions_is_one_number_as_in_ggml(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", header(llama_values(), [("t", (), 0, 0)]), data_bytes=32)
    assert [(tensor.shape, tensor.nbytes) for tensor in read_gguf(path).tensors] == [((1,), 4)]


def test_a_pipe_is_no_model_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ModelFileError, match="it is a pipe or a device, not a file"):
        read_gguf(tmp_path / "m.gguf")


def test_an_alignment_of_one_byte_is_read_as_in_ggml(tmp_path: Path) -> None:
    data = header(llama_values(**{"general.alignment": 1}), [("t", (32,), 0, 0)])
    assert read_gguf(write(tmp_path / "m.gguf", data, data_bytes=128)).tensors


def test_version_two_is_read(tmp_path: Path) -> None:
    assert read_gguf(write(tmp_path / "m.gguf", header(llama_values(), version=2))).n_vocab == 3
