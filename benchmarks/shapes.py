"""Writes headers of made-up models with the tensors that llama.cpp's own loader asks for.

    shapes.py FOLDER --llama-cpp SOURCE [--only ARCHITECTURE] [--seeds 1] [--first 0]

A model of each size is drawn for each architecture that llama.cpp has, and published models are
added (`shape_keys.py`). The loader names the keys that it reads and the tensors with their shapes
(`asked_tensors.cpp`), its quantiser their types; nothing of kvchat's catalogue, layouts or
quantisation rules is used. Files that llama.cpp does not load are drawn again, and left out after
some tries.
"""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import prod
from pathlib import Path
from random import Random

import click
from accuracy_models import check, write_file
from published_models import published_models
from quantization import Quantizer
from shape_keys import SIZES, Keys, drawn_keys

from engine.memory.dry_run import DryRun
from engine.model.ggml import FILE_TYPES, GGML_TYPES
from engine.model.gguf import DEFAULT_ALIGNMENT, TensorInfo, Value

TYPES = {kind.name.lower(): kind for kind in GGML_TYPES.values()}
TYPE_IDS = {kind.name.lower(): number for number, kind in GGML_TYPES.items()}
PLAIN_MIXES = ("F32", "F16", "BF16")
MIXES = (
    "Q4_K_M", "Q4_K_M", "Q4_K_S", "Q5_K_M", "Q6_K", "Q8_0", "Q3_K_M", "Q2_K", "IQ4_XS", "IQ4_NL",
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ2_0", *PLAIN_MIXES,
)  # fmt: skip
MATRICES = ("MUL_MAT", "MUL_MAT_ID", "GET_ROWS")
F32_PARTS = ("_norm", "gate_inp", "conv", "time_mix", "altup", "laurel", "position_embd",
              "token_types", "hc_", "indexer.proj", "attn_rel_b")  # fmt: skip
"""Parts of names of tensors that converters leave in 32 bits."""
NO_TEXT = (
    "clip gptj bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 "
    "eurobert gemma-embedding gemma4-assistant wavtokenizer-dec eagle3 dflash t5encoder "
    "pockettts (unknown)"
)
"""Architectures that hold no chat: encoders, heads for other models, sound."""
SMALL_VOCABULARY = 1000
N_TRIES = 6


@dataclass
class Asked:
    """What the loader asks of one file."""

    keys: set[str] = field(default_factory=set)
    tensors: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Operation and shape by name."""
    error: str = ""


class Loader:
    """llama.cpp's loader in a process that is started again where it aborts."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._process: subprocess.Popen[str] | None = None
        self.architectures: list[str] = []
        self._keys: dict[tuple[Value, ...], set[str]] = {}

    def ask(self, path: Path, seed: int, share: int) -> Asked:
        """What is asked for by a file with keys; `share` per cent of what may be missing."""
        process = self.start()
        assert process.stdin
        process.stdin.write(f"{seed} {share} {path}\n")
        process.stdin.flush()
        asked = Asked()
        for kind, text in self._lines():
            if kind == "key":
                asked.keys.add(text)
            elif kind == "tensor":
                name, operation, *sizes = text.split()
                asked.tensors[name] = operation, tuple(map(int, sizes))
            elif kind == "error":
                asked.error = asked.error or text
        if process.poll() is not None:
            asked.error, self._process = asked.error or "abort", None
        return asked

    def keys_of(self, path: Path, values: dict[str, Value]) -> set[str]:
        """The keys that the loader reads, of an architecture with those keys."""
        known = values["general.architecture"], *values
        if known not in self._keys:
            write_file(path, values, (), SMALL_VOCABULARY)
            asked = self.ask(path, 0, 100)
            if asked.error:
                raise ValueError(asked.error)
            self._keys[known] = asked.keys
        return self._keys[known]

    def start(self) -> "subprocess.Popen[str]":
        """Start the program where it does not run; it names the architectures first."""
        if self._process is None:
            self._process = subprocess.Popen(
                [self._program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            self.architectures = [text for _, text in self._lines()]
        return self._process

    def _lines(self) -> Iterator[tuple[str, str]]:
        assert self._process
        assert self._process.stdout
        for line in self._process.stdout:
            kind, _, text = line.strip().partition(" ")
            if kind == "done":
                return
            yield kind, text
        self._process.wait()


def write_shape(
    path: Path, architecture: str, size: str, seed: int, loader: Loader, quantizer: Quantizer
) -> None:
    """Write the header of one drawn model.

    Raises:
        ValueError: llama.cpp does not load what was drawn; the message is its own.
    """
    random = Random(f"{architecture} {size} {seed}")
    keys = drawn_keys(architecture, size, random)
    n_vocab = keys["vocab_size"]
    assert isinstance(n_vocab, int)
    share = random.choice((100, 70, 30)) if seed % N_TRIES < N_TRIES // 2 else 100
    mix = random.choice(MIXES)
    values = _values(architecture, keys)
    read = loader.keys_of(path, values)
    values = {name: value for name, value in values.items() if name in read}
    write_file(path, values, (), n_vocab)
    asked = loader.ask(path, seed, share)
    if asked.error:
        raise ValueError(asked.error)
    values |= {"general.name": path.stem, "general.file_type": _file_type(mix)}
    base = mix.lower() if mix in PLAIN_MIXES else "f16"
    types = {name: _base_type(name, *found, base) for name, found in asked.tensors.items()}
    write_file(path, values, tuple(_table(asked, types)), n_vocab)
    if mix not in PLAIN_MIXES:
        types |= quantizer.types(path, mix, **_choices(random))
        write_file(path, values, tuple(_table(asked, types)), n_vocab)


def _values(architecture: str, keys: Keys) -> dict[str, Value]:
    prefixed = {
        (name if name.startswith("xielu.") else f"{architecture}.{name}"): value
        for name, value in keys.items()
        if name != "vocab_size"
    }
    return {"general.architecture": architecture, **prefixed}


def _file_type(mix: str) -> int:
    return next(number for number, name in FILE_TYPES.items() if name == mix)


def _choices(random: Random) -> dict[str, int]:
    """Some files are of one type, or have embeddings or output of another."""
    drawn: dict[str, int] = {"pure": random.random() < 0.15}
    for name in ("token_embedding_type", "output_tensor_type"):
        if random.random() < 0.25:
            drawn[name] = TYPE_IDS[random.choice(("q4_0", "q4_k", "q6_k", "q8_0", "iq4_nl", "f16"))]
    return drawn


def _base_type(name: str, operation: str, shape: tuple[int, ...], base: str) -> str:
    if name.endswith("tid2eid.weight"):
        return "i32"
    is_f32 = any(part in name for part in F32_PARTS) or not name.endswith(".weight")
    return base if operation in MATRICES and len(shape) > 1 and not is_f32 else "f32"


def _table(asked: Asked, types: dict[str, str]) -> Iterator[TensorInfo]:
    offset = 0
    for name, (_, shape) in asked.tensors.items():
        kind = TYPES[types[name].lower()]
        if shape[0] % kind.block_size:
            kind = TYPES["f16"]
        nbytes = kind.row_bytes(shape[0]) * prod(shape[1:])
        yield TensorInfo(name, shape, kind, offset, nbytes)
        offset += -(-nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def built_loader(source: Path, folder: Path) -> Path:
    """Compile the program that stands between loader and file, against llama.cpp's source."""
    program, code = folder / "asked_tensors", Path(__file__).with_name("asked_tensors.cpp")
    if program.exists() and program.stat().st_mtime > code.stat().st_mtime:
        return program
    spec = find_spec("llama_cpp")
    assert spec
    assert spec.origin
    libraries = Path(spec.origin).parent / "lib"
    headers = [f"-I{source / name}" for name in ("ggml/include", "include", "src")]
    linked = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lllama", "-lggml", "-lggml-base",
              "-lggml-cpu", "-ldl"]  # fmt: skip
    command = ["g++", "-std=c++17", "-O1", "-rdynamic", *headers, str(code), *linked]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--llama-cpp", "source", type=click.Path(path_type=Path), required=True)
@click.option("--only", "wanted", multiple=True, help="Architectures; all without.")
@click.option("--seeds", default=1, show_default=True, help="Models of each size.")
@click.option("--first", default=0, show_default=True, help="Seed of the first model of a size.")
def main(folder: Path, source: Path, wanted: tuple[str, ...], seeds: int, first: int) -> None:
    """Write the headers of made-up models."""
    folder.mkdir(parents=True, exist_ok=True)
    loader, quantizer = Loader(built_loader(source, folder)), Quantizer()
    loader.start()
    names = wanted or [name for name in loader.architectures if name not in NO_TEXT.split()]
    drawn = [(size, name) for name in names for size in SIZES]
    drawn += [(model, name) for model, name in published_models() if name in names]
    n_written = 0
    with DryRun() as dry_run:
        for size, architecture in drawn:
            for seed in range(first, first + seeds):
                n_written += written(architecture, size, seed * N_TRIES, folder, loader,
                                     quantizer, dry_run)  # fmt: skip
    click.echo(f"{n_written} files of {len(names)} architectures")


def written(
    architecture: str, size: str, seed: int, folder: Path, loader: Loader, quantizer: Quantizer,
    dry_run: DryRun,
) -> bool:  # fmt: skip
    """Write one model that llama.cpp loads, in some tries; print that there is none otherwise."""
    numbers = range(seed, seed + N_TRIES)
    if any((folder / f"{architecture}-{size}-{number}.gguf").exists() for number in numbers):
        return True
    reason = ""
    for number in numbers:
        path = folder / f"{architecture}-{size}-{number}.gguf"
        try:
            write_shape(path, architecture, size, number, loader, quantizer)
            reason = check(path, dry_run)
        except (ValueError, click.ClickException) as error:
            reason = f"REFUSED {error}"
        if not reason.startswith("REFUSED"):
            return True
        path.unlink()
    click.echo(f"{architecture} {size}: {reason}")
    return False


if __name__ == "__main__":
    main()
