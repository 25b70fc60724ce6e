"""Models by name: what their GGUF headers say, known without a file."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from engine.errors import ModelFileError
from engine.model.architecture import Model, architecture_of
from engine.model.ggml_types import FILE_TYPE_IDS
from engine.model.gguf import GgufFile
from engine.model.gguf_header import DEFAULT_ALIGNMENT, TensorInfo, Value
from engine.model.quantization import quantized_type
from engine.model.snapshots import SNAPSHOT_TYPE, Snapshot, snapshots
from engine.model.vocabulary import have_like_sizes
from engine.validation import nearest

CATALOG_PATH = Path(__file__).with_name("catalog.toml")
DEFAULT_QUANTIZATION = "Q4_K_M"
WEIGHTS_SPREAD = 0.03
"""How far the weights of a published file may be from those that are worked out."""
LARGEST_SHARE = 0.2
"""Most parameters of a draft against its target's: a draft that costs more gains nothing."""
VOCABULARY_FAMILIES = {
    "Llama 3": r"llama-3\.",
    "Llama 2": r"(llama-2|codellama|tinyllama)-",
    "Qwen 2.5": r"qwen2\.5-(?!vl)",
    "Qwen 3": r"qwen3-(?!next|vl)",
    "Qwen 3.5": r"qwen3\.[56]-",
    "Gemma 2": r"gemma-2-",
    "Gemma 3": r"gemma-3-",
    "SmolLM2": r"smollm2-",
    "ERNIE 4.5": r"ernie-4\.5-",
}
"""Models of the catalogue that share a vocabulary, by their names. TinyLlama and Code Llama have
that of Llama 2; Qwen 2.5 and 3 differ in the tokens that mark thinking and tools."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A public model, from which a header can be made for any quantisation."""

    name: str
    aliases: tuple[str, ...]
    source: str
    """The published file that the figures come from."""
    checked: str
    """How the entry was verified."""
    snapshot: Snapshot

    @property
    def architecture(self) -> str:
        """Architecture as llama.cpp names it."""
        return self.snapshot.architecture

    @property
    def n_vocab(self) -> int:
        """Entries of the vocabulary."""
        return self.snapshot.n_vocab

    @property
    def n_ctx_train(self) -> int:
        """Tokens of the longest context that the model was trained on."""
        n_ctx = self.snapshot.values[f"{self.architecture}.context_length"]
        assert isinstance(n_ctx, int)
        return n_ctx

    @property
    def n_parameters(self) -> int:
        """Elements of all tensors."""
        return self.snapshot.n_parameters

    def model(self, quantization: str = DEFAULT_QUANTIZATION) -> Model:
        """The model as if its file had been read.

        Raises:
            ModelFileError: a quantisation that is not known.
        """
        file = self.header(quantization)
        return Model(file, architecture_of(file))

    def header(self, quantization: str = DEFAULT_QUANTIZATION) -> GgufFile:
        """Keys and tensor table; of the vocabulary only its length.

        Raises:
            ModelFileError: a quantisation that is not known.
        """
        tensors = tuple(_quantized(self.snapshot, quantization))
        last = tensors[-1]
        path = Path(f"{self.name}.{quantization}.gguf")
        about: dict[str, Value] = {
            "general.architecture": self.architecture,
            "general.name": self.name,
            "general.file_type": FILE_TYPE_IDS[quantization],
            f"{self.architecture}.vocab_size": self.n_vocab,
        }
        return GgufFile(
            path=path,
            version=3,
            values={**self.snapshot.values, **about},
            array_lengths={"tokenizer.ggml.tokens": self.n_vocab},
            tensors=tensors,
            nbytes=last.offset + _padded(last.nbytes),
            paths=(path,),
            weights_spread=WEIGHTS_SPREAD,
        )


def entries() -> tuple[CatalogEntry, ...]:
    """Every model of the catalogue, in its order."""
    return tuple(_entries().values())


def find_entry(name: str) -> CatalogEntry:
    """The model of a name or of one of its aliases, in upper or lower case.

    Raises:
        ModelFileError: no model has that name; the message names those that come near.
    """
    wanted = name.strip().lower()
    names = _names()
    if wanted in names:
        return _entries()[names[wanted]]
    near = nearest(wanted, names, n=3, cutoff=0.5)
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else "`kvchat models catalogue` lists its models"
    )
    raise ModelFileError(f"the catalogue has no model {name!r}: {hint}")


@dataclass(frozen=True, slots=True)
class DraftPair:
    """A model that can draft for another."""

    target: str
    draft: str
    share: float
    """Parameters of the draft over those of the target: what drafting a token costs, roughly."""


def recommended_drafts(target: str) -> tuple[DraftPair, ...]:
    """The models of the catalogue that can draft for one of it, the cheapest first.

    Raises:
        ModelFileError: the catalogue has no such model.
    """
    entry = find_entry(target)
    family = vocabulary_family(entry.name)
    if family is None:
        return ()
    kin = [each for each in entries() if each != entry and vocabulary_family(each.name) == family]
    pairs = [_pair(entry, each) for each in kin if have_like_sizes(entry.n_vocab, each.n_vocab)]
    useful = (pair for pair in pairs if pair.share <= LARGEST_SHARE)
    return tuple(sorted(useful, key=lambda pair: pair.share))


def vocabulary_family(name: str) -> str | None:
    """The family of a catalogue model's vocabulary; None where no other has it."""
    return next((f for f, pattern in VOCABULARY_FAMILIES.items() if re.match(pattern, name)), None)


def _quantized(snapshot: Snapshot, quantization: str) -> Iterator[TensorInfo]:
    """The tensor table of a file of that quantisation."""
    found = list(snapshot.tensors())
    is_tied = all(tensor.name != "output.weight" for tensor in found)
    offset = 0
    for tensor in found:
        kind = tensor.type
        if kind.name == SNAPSHOT_TYPE:
            kind = quantized_type(
                quantization, tensor.name, tensor.shape[0],
                n_layers=len(snapshot.layers), is_tied=is_tied,
            )  # fmt: skip
        nbytes = kind.row_bytes(prod(tensor.shape))
        yield TensorInfo(tensor.name, tensor.shape, kind, offset, nbytes)
        offset += _padded(nbytes)


def _padded(nbytes: int) -> int:
    return -(-nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


@cache
def _entries() -> Mapping[str, CatalogEntry]:
    """Each model by its name."""
    tables = tomllib.loads(CATALOG_PATH.read_text(encoding="utf-8"))
    return {
        name: CatalogEntry(
            name=name,
            aliases=tuple(table.get("aliases", ())),
            source=table["source"],
            checked=table["checked"],
            snapshot=snapshots()[name],
        )
        for name, table in tables.items()
    }


@cache
def _names() -> Mapping[str, str]:
    """The entry of each name and alias, in lower case."""
    return {
        known.lower(): entry.name for entry in entries() for known in (entry.name, *entry.aliases)
    }


def _pair(target: CatalogEntry, draft: CatalogEntry) -> DraftPair:
    return DraftPair(target.name, draft.name, draft.n_parameters / target.n_parameters)
