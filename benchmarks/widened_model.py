"""A model with the starter model's text and the cost of one of 1.5 billion parameters.

    ../.venv/bin/python widened_model.py MODEL FOLDER [--quantization Q4_K_M] [--check 64]

A llama model is made four times as wide (embedding, query, key and value heads) and three times in
its feed forward, with zeros: what is added is computed in every step, and adds nothing. The width
of a root mean square grows too, so norms are halved and their epsilon is a quarter, both exact. A
batch costs what any model of these sizes costs, since no kernel of llama.cpp looks for zeros; the
text is the small model's. So it measures what drafts cost and gain on a larger model, and says
nothing of how often those of a larger model are right.

`--check` generates that many tokens with the small model and the wide one, both in 16 bits.
"""

import argparse
import ctypes
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import llama_cpp
import numpy as np
from accuracy_models import F32, STRING, U32
from common import ask, load

from engine.configuration import PredictorName, SpeculationSettings
from engine.model.ggml_types import FILE_TYPE_IDS, TYPE_NUMBERS, TYPES_BY_NAME
from engine.model.gguf import GgufFile, HeaderKeys, read_gguf
from engine.model.gguf_header import DEFAULT_ALIGNMENT, TensorInfo, Value
from engine.requests import GenerationRequest

WIDTH, FEED_FORWARD = 4, 3
"""Times that sizes grow. A width of 4 halves the norms, which no format rounds."""
NAME = "general.name"
EPSILON = "llama.attention.layer_norm_rms_epsilon"
TIMES: Mapping[str, float] = {
    "llama.embedding_length": WIDTH,
    "llama.attention.head_count": WIDTH,
    "llama.attention.head_count_kv": WIDTH,
    "llama.feed_forward_length": FEED_FORWARD,
    EPSILON: 1 / WIDTH,
}
PROMPT = "Once upon a time, in a harbour town with three bakeries,"
CODES = {U32: "<I", F32: "<f"}


def main() -> None:
    options = parsed()
    llama_cpp.llama_log_set(QUIET, ctypes.c_void_p(0))
    options.folder.mkdir(parents=True, exist_ok=True)
    stem = f"{options.model.stem.split('.')[0]}-widened"
    plain, exact = (options.folder / f"{stem}.{kind}.gguf" for kind in ("source", "F16"))
    quantize(options.model, plain, "F32")
    widen(read_gguf(plain), exact)
    made = options.folder / f"{stem}.{options.quantization}.gguf"
    quantize(exact, made, options.quantization)
    file = read_gguf(made)
    n_parameters = sum(int(np.prod(tensor.shape)) for tensor in file.tensors)
    print(f"{made}: {n_parameters / 1e9:.2f} billion parameters, {file.nbytes / 2**30:.2f} GiB")
    if options.check:
        check(plain, exact, options.check)
    plain.unlink()
    exact.unlink()


@llama_cpp.llama_log_callback
def QUIET(_level: int, _text: bytes, _data: int | None) -> None:  # noqa: N802  a callback's object
    """Takes llama.cpp's log, of which the quantiser writes a line for each tensor."""


def quantize(source: Path, target: Path, quantization: str) -> None:
    """Write a model with llama.cpp's own quantiser, which widens to 32 bits too."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FILE_TYPE_IDS[quantization]
    params.allow_requantize = True
    names = str(source).encode(), str(target).encode()
    if llama_cpp.llama_model_quantize(*names, ctypes.byref(params)):
        sys.exit(f"llama.cpp could not write {target.name} from {source.name}")


def widen(file: GgufFile, target: Path) -> None:
    """Write the wide model in 16 bits, norms in 32."""
    if file.architecture != "llama":
        sys.exit(f"{file.path.name} is a {file.architecture} model: only llama models are widened")
    tensors = widened_table(file)
    with target.open("wb") as out:
        out.write(widened_keys(file))
        for tensor in tensors:
            out.write(table_row(tensor))
        start = aligned(out.tell())
        for tensor, data in zip(tensors, widened_data(file, tensors), strict=True):
            out.seek(start + tensor.offset)
            data.tofile(out)
        out.truncate(start + aligned(out.tell() - start))


def widened_table(file: GgufFile) -> list[TensorInfo]:
    """Names, shapes and places of the wide tensors."""
    keys = HeaderKeys(file)
    width = keys.positive("embedding_length")
    head_dim = width // keys.positive("attention.head_count")
    times = {
        width: WIDTH,
        head_dim * keys.positive("attention.head_count_kv"): WIDTH,
        keys.positive("feed_forward_length"): FEED_FORWARD,
    }
    tensors: list[TensorInfo] = []
    offset = 0
    for tensor in file.tensors:
        shape = tuple(size * times.get(size, 1) for size in tensor.shape)
        kind = TYPES_BY_NAME["f32" if len(shape) == 1 else "f16"]
        nbytes = int(np.prod(shape)) * (4 if len(shape) == 1 else 2)
        tensors.append(replace(tensor, shape=shape, type=kind, offset=offset, nbytes=nbytes))
        offset += aligned(nbytes)
    return tensors


def widened_data(file: GgufFile, tensors: Sequence[TensorInfo]) -> Iterator[np.ndarray]:
    """The values of each wide tensor: the small one's first, zeros behind them on each axis.

    Heads are blocks of rows in the same order, so those that are added stand behind the old ones,
    and each old query head keeps its key head.
    """
    start = aligned(file.header_sizes[0])
    for old, new in zip(file.tensors, tensors, strict=True):
        shape = old.shape[::-1]
        values = np.memmap(file.path, "<f4", "r", start + old.offset, shape)
        is_norm = len(shape) == 1
        data = np.zeros(new.shape[::-1], "<f4" if is_norm else "<f2")
        data[tuple(map(slice, shape))] = values * WIDTH**-0.5 if is_norm else values
        yield data


def widened_keys(file: GgufFile) -> bytes:
    """The keys with the wide sizes, everything up to the table of tensors."""
    data = file.path.read_bytes()[: file.header_sizes[0]]
    data = data[: data.index(table_row(file.tensors[0]))]
    for key, times in TIMES.items():
        value = file.values[key]
        assert isinstance(value, int | float)
        data = replaced(data, key, value, type(value)(value * times))
    return replaced(data, NAME, file.name, f"{file.name}, widened with zeros")


def replaced(data: bytes, key: str, old: Value, new: Value) -> bytes:
    """The keys with another value for one of them."""
    if (entry := pair(key, old)) not in data:
        sys.exit(f"the header has no {key} of a kind that is known here")
    return data.replace(entry, pair(key, new), 1)


def pair(key: str, value: Value) -> bytes:
    if isinstance(value, str):
        return text(key) + struct.pack("<I", STRING) + text(value)
    kind = U32 if isinstance(value, int) else F32
    return text(key) + struct.pack("<I", kind) + struct.pack(CODES[kind], value)


def table_row(tensor: TensorInfo) -> bytes:
    n_axes = len(tensor.shape)
    shape = struct.pack(f"<I{n_axes}Q", n_axes, *tensor.shape)
    place = struct.pack("<IQ", TYPE_NUMBERS[tensor.type.name], tensor.offset)
    return text(tensor.name) + shape + place


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def aligned(n_bytes: int) -> int:
    return -(-n_bytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def check(plain: Path, wide: Path, n_tokens: int) -> None:
    """Print how many greedy tokens of the two agree from the first one on."""
    small, large = (generated(path, n_tokens) for path in (plain, wide))
    same = [left == right for left, right in zip(small, large, strict=False)]
    n_same = next((place for place, agrees in enumerate(same) if not agrees), len(same))
    print(f"{n_same} of {len(small)} greedy tokens agree with the small model in 16 bits")


def generated(path: Path, n_tokens: int) -> Sequence[int]:
    """The greedy tokens of a model behind `PROMPT`, without drafts."""
    engine = load(path, n_ctx=1024, speculation=SpeculationSettings(predictor=PredictorName.OFF))
    reply = ask(engine, GenerationRequest(raw_prompt=PROMPT, max_tokens=n_tokens))
    engine.client.close()
    return reply.token_ids


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quantization", choices=sorted(FILE_TYPE_IDS), default="Q4_K_M")
    parser.add_argument("--check", type=int, default=0, metavar="TOKENS")
    return parser.parse_args()


if __name__ == "__main__":
    main()
