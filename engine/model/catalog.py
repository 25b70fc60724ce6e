"""Models by name: what their GGUF headers say, known without a file."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from types import MappingProxyType

from engine.errors import ModelFileError
from engine.model.architecture import Model, architecture_of
from engine.model.gguf import GgufFile
from engine.model.gguf_header import DEFAULT_ALIGNMENT, TensorInfo, Value
from engine.model.layouts import tensor_shapes
from engine.model.layouts.tables import Keys
from engine.model.quantization import FILE_TYPE_IDS, Mix, tensor_types
from engine.model.vocabulary import have_like_sizes
from engine.validation import nearest

CATALOG_PATH = Path(__file__).with_name("catalog.toml")
HEADING = re.compile(r"^\[(?P<name>[^\]]+)\]$", re.MULTILINE)
ALIASES = re.compile(r"^aliases = (?P<names>\[[^\]]*\])", re.MULTILINE)
SIZED_70B = {"llama", "qwen2"}
DEFAULT_QUANTIZATION = "Q4_K_M"
ABOUT = frozenset({"aliases", "architecture", "source", "checked", "n_vocab", "traits"})
"""Keys of the catalogue's own; all others are keys of GGUF without the architecture's prefix."""
UNPREFIXED = "xielu."
"""Keys that stand in a header without the architecture before them."""
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
    "StarCoder 2": r"starcoder2-",
    "DeepSeek Coder": r"deepseek-coder-",
    "EXAONE 4": r"exaone-4\.0-",
    "ERNIE 4.5": r"ernie-4\.5-",
}
"""Models of the catalogue that share a vocabulary, by their names. TinyLlama and Code Llama have
that of Llama 2; Qwen 2.5 and 3 differ in the tokens that mark thinking and tools."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A public model, from which a header can be made for any quantisation."""

    name: str
    aliases: tuple[str, ...]
    architecture: str
    source: str
    """The published file that the figures come from."""
    checked: str
    """How the entry was verified."""
    n_vocab: int
    traits: frozenset[str]
    values: Mapping[str, Value]
    """Keys without the architecture's prefix."""

    @property
    def n_ctx_train(self) -> int:
        """Tokens of the longest context that the model was trained on."""
        n_ctx = self.values["context_length"]
        assert isinstance(n_ctx, int)
        return n_ctx

    @property
    def n_parameters(self) -> int:
        """Elements of all tensors."""
        return sum(prod(shape) for _, shape in tensor_shapes(self._keys()))

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
        tensors = self._tensors(quantization)
        last = tensors[-1]
        path = Path(f"{self.name}.{quantization}.gguf")
        return GgufFile(
            path=path,
            version=3,
            values=self._header_values(quantization),
            array_lengths={"tokenizer.ggml.tokens": self.n_vocab},
            tensors=tensors,
            nbytes=last.offset + _padded(last.nbytes),
            paths=(path,),
        )

    def _header_values(self, quantization: str) -> dict[str, Value]:
        values: dict[str, Value] = {
            "general.architecture": self.architecture,
            "general.name": self.name,
            "general.file_type": FILE_TYPE_IDS[quantization],
        }
        prefixed = {self._full(key): value for key, value in self.values.items()}
        return values | prefixed | {f"{self.architecture}.vocab_size": self.n_vocab}

    def _full(self, key: str) -> str:
        return key if key.startswith(UNPREFIXED) else f"{self.architecture}.{key}"

    def _keys(self) -> Keys:
        return Keys(self.architecture, self.values, self.n_vocab, self.traits)

    def _tensors(self, quantization: str) -> tuple[TensorInfo, ...]:
        keys = self._keys()
        shapes = tensor_shapes(keys)
        types = tensor_types(_mix(keys, quantization), shapes)
        tensors = []
        offset = 0
        for (name, shape), kind in zip(shapes, types, strict=True):
            nbytes = kind.row_bytes(prod(shape))
            tensors.append(TensorInfo(name, shape, kind, offset, nbytes))
            offset += _padded(nbytes)
        return tuple(tensors)


def entries() -> tuple[CatalogEntry, ...]:
    """Every model of the catalogue, in its order."""
    return tuple(_entry(name) for name in _sections())


def find_entry(name: str) -> CatalogEntry:
    """The model of a name or of one of its aliases, in upper or lower case.

    Raises:
        ModelFileError: no model has that name; the message names those that come near.
    """
    wanted = name.strip().lower()
    names = _names()
    if wanted in names:
        return _entry(names[wanted])
    near = nearest(wanted, names, n=3, cutoff=0.5)
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else "`kvchat models catalogue` lists those it has"
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


def _mix(keys: Keys, quantization: str) -> Mix:
    heads = keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", default=heads)
    return Mix(
        quantization=quantization,
        architecture=keys.architecture,
        n_layers=keys.n_layers,
        n_experts=keys.integer("expert_count"),
        heads_per_kv_head=heads // kv_heads if kv_heads else 0,
        is_70b=keys.architecture in SIZED_70B and keys.n_layers == 80 and heads != kv_heads,
        has_mxfp4_experts="mxfp4_experts" in keys.traits,
    )


def _padded(nbytes: int) -> int:
    return -(-nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


@cache
def _sections() -> Mapping[str, str]:
    """The text of each model: parsing all of them for one would take most of the time."""
    text = CATALOG_PATH.read_text(encoding="utf-8")
    found = list(HEADING.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return MappingProxyType(
        {
            match["name"].strip('"'): text[match.end() : end]
            for match, end in zip(found, ends, strict=True)
        }
    )


@cache
def _names() -> Mapping[str, str]:
    """The entry of each name and alias, in lower case."""
    names: dict[str, str] = {}
    for name, section in _sections().items():
        for known in (name, *_aliases(section)):
            names[known.lower()] = name
    return MappingProxyType(names)


def _aliases(section: str) -> tuple[str, ...]:
    match = ALIASES.search(section)
    return () if match is None else tuple(re.findall(r'"([^"]+)"', match["names"]))


@cache
def _entry(name: str) -> CatalogEntry:
    table = tomllib.loads(_sections()[name])
    return CatalogEntry(
        name=name,
        aliases=tuple(table.get("aliases", ())),
        architecture=table["architecture"],
        source=table["source"],
        checked=table["checked"],
        n_vocab=table["n_vocab"],
        traits=frozenset(table.get("traits", ())),
        values=MappingProxyType(dict(_flat(table))),
    )


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, Value]]:
    for key, value in table.items():
        if not prefix and key in ABOUT:
            continue
        match value:
            case dict():
                yield from _flat(value, f"{prefix}{key}.")
            case list():
                yield f"{prefix}{key}", tuple(value)
            case int() | float() | str():
                yield f"{prefix}{key}", value
            case _:
                raise ModelFileError(
                    f"{CATALOG_PATH.name} has {value!r} as {prefix}{key}: numbers, texts and lists "
                    "are keys"
                )


def _pair(target: CatalogEntry, draft: CatalogEntry) -> DraftPair:
    return DraftPair(target.name, draft.name, draft.n_parameters / target.n_parameters)
