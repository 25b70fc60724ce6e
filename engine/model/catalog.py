"""Public models by name, from the headers of published files.

The weights of a catalogue model are an estimate: the mixes of llama.cpp 0c1e57098
(`src/llama-quant.cpp`) are applied without its rules for single architectures.
"""

import gzip
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import NamedTuple

from engine.errors import ModelFileError
from engine.model.architecture import Model, architecture_of
from engine.model.ggml import FILE_TYPE_IDS, TYPES_BY_NAME, GgmlType
from engine.model.gguf import DEFAULT_ALIGNMENT, GgufFile, TensorInfo, Value
from engine.model.vocabulary import have_similar_sizes
from engine.validation import nearest

CATALOG_PATH = Path(__file__).with_name("catalog.toml")
SNAPSHOTS_PATH = Path(__file__).with_name("snapshots.json.gz")  # written by `scripts/catalogue.py`
SNAPSHOT_TYPE = "q8_0"  # the type of the matrices that a quantisation changes, in snapshots
DEFAULT_QUANTIZATION = "Q4_K_M"
WEIGHTS_SPREAD = 0.03  # relative difference of the weights from those of a published file
MAX_DRAFT_SHARE = 0.2  # parameters of a draft over its target's: a larger draft gains nothing
LAYER = re.compile(r"blk\.(\d+)\.")
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
VALUES = r"attn_(v|qkv|kv_b)\."
RAISED_IN_SOME = re.compile(rf"{VALUES}|ffn_down")
RAISED_IN_ALL = re.compile(rf"{VALUES}|ffn_down|attn_output\.")
FALLBACKS = {
    "iq4_xs": "iq4_nl", "q2_K": "q4_0", "q3_K": "q4_0", "q4_K": "q5_0", "q5_K": "q5_1",
    "q6_K": "q8_0",
}  # fmt: skip
"""The type of tensors whose rows are no multiple of 256."""
VOCABULARY_FAMILIES = (
    r"llama-3\.", r"(llama-2|codellama|tinyllama)-", r"qwen2\.5-(?!vl)", r"qwen3-(?!next|vl)",
    r"qwen3\.[56]-", r"gemma-2-", r"gemma-3-", r"smollm2-", r"ernie-4\.5-",
)  # fmt: skip
"""Names of models that share a vocabulary. TinyLlama and Code Llama have that of Llama 2; Qwen 2.5
and 3 differ in the tokens of thinking and tools."""


class Mix(NamedTuple):
    """Tensor types that files of a quantisation usually have."""

    default: str
    raised: str = ""  # the type of `ffn_down`, of values and, unless `in_some`, of `attn_output`
    in_some: bool = False  # whether only about half of the layers have raised matrices


MIXES: Mapping[str, Mix] = {
    "F32": Mix("f32"), "F16": Mix("f16"), "BF16": Mix("bf16"), "Q8_0": Mix("q8_0"),
    "Q4_0": Mix("q4_0"), "Q4_1": Mix("q4_1"), "Q5_0": Mix("q5_0"), "Q5_1": Mix("q5_1"),
    "Q2_K": Mix("q2_K", "q3_K"), "Q3_K_S": Mix("q3_K"), "Q3_K_M": Mix("q3_K", "q4_K"),
    "Q3_K_L": Mix("q3_K", "q5_K"), "Q4_K_S": Mix("q4_K"),
    "Q4_K_M": Mix("q4_K", "q6_K", in_some=True), "Q5_K_S": Mix("q5_K"),
    "Q5_K_M": Mix("q5_K", "q6_K", in_some=True), "Q6_K": Mix("q6_K"), "IQ4_NL": Mix("iq4_nl"),
    "IQ4_XS": Mix("iq4_xs"), "MXFP4_MOE": Mix("q8_0"),
}  # fmt: skip
QUANTIZATIONS = tuple(MIXES)


class UnknownQuantizationError(ModelFileError):
    """A quantisation that no model of the catalogue can have."""

    title = "No such quantisation"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A public model with its Q8_0 header, from which other quantisations are derived.

    A tensor is a text of its name, its type and its dimensions.
    """

    name: str
    architecture: str
    n_vocab: int
    values: Mapping[str, Value]
    outside: list[str]  # tensors of no layer
    kinds: list[list[str]]  # the tensors of each distinct layer, without its number in their names
    layers: list[int]  # the index in `kinds` of each layer
    aliases: Sequence[str] = ()
    source: str = ""  # the published file that the figures come from
    checked: str = ""  # how the entry was verified

    @property
    def n_ctx_train(self) -> int:
        n_ctx = self.values[f"{self.architecture}.context_length"]
        assert isinstance(n_ctx, int)
        return n_ctx

    @property
    def n_parameters(self) -> int:
        """Elements of all tensors."""
        n_layers = Counter(self.layers)
        rows = [(1, self.outside), *((n_layers[k], rows) for k, rows in enumerate(self.kinds))]
        return sum(n * prod(_tensor(row).shape) for n, each in rows for row in each)

    def tensors(self) -> Iterator[TensorInfo]:
        """Every tensor at Q8_0, those of the layers last; without their offsets."""
        yield from map(_tensor, self.outside)
        for layer, kind in enumerate(self.layers):
            yield from (_tensor(f"blk.{layer}.{row}") for row in self.kinds[kind])

    def model(self, quantization: str = DEFAULT_QUANTIZATION) -> Model:
        """The model in one quantisation; raises as `header` does."""
        file = self.header(quantization)
        return Model(file, architecture_of(file))

    def header(self, quantization: str = DEFAULT_QUANTIZATION) -> GgufFile:
        """Keys and tensor table; raises `UnknownQuantizationError` for an unknown mix."""
        tensors = tuple(_quantized(self, quantization))
        path = Path(f"{self.name}.{quantization}.gguf")
        about: dict[str, Value] = {
            "general.architecture": self.architecture,
            "general.name": self.name,
            "general.file_type": FILE_TYPE_IDS[quantization],
            f"{self.architecture}.vocab_size": self.n_vocab,
        }
        return GgufFile(
            path=path,
            values={**self.values, **about},
            array_lengths={"tokenizer.ggml.tokens": self.n_vocab},
            tensors=tensors,
            nbytes=tensors[-1].offset + _padded(tensors[-1].nbytes),
            paths=(path,),
            weights_spread=WEIGHTS_SPREAD,
        )


@cache
def entries() -> tuple[CatalogEntry, ...]:
    """Every model of the catalogue, in its order."""
    tables = tomllib.loads(CATALOG_PATH.read_text(encoding="utf-8"))
    headers = unpack(SNAPSHOTS_PATH.read_bytes())
    return tuple(replace(headers[name], **table) for name, table in tables.items())


def unpack(data: bytes) -> dict[str, CatalogEntry]:
    """Entries of packed headers, by name."""
    found = json.loads(gzip.decompress(data))
    for each in found.values():
        values = each["values"].items()
        each["values"] = {k: tuple(v) if isinstance(v, list) else v for k, v in values}
    return {name: CatalogEntry(name, **each) for name, each in found.items()}


@cache
def entries_by_name() -> Mapping[str, CatalogEntry]:
    """The models by each of their names and aliases, in small letters."""
    return {name.lower(): entry for entry in entries() for name in (entry.name, *entry.aliases)}


def find_entry(name: str) -> CatalogEntry:
    """The model of a name or an alias; `ModelFileError` names similar ones for any other name."""
    wanted, named = name.strip().lower(), entries_by_name()
    if wanted in named:
        return named[wanted]
    near = nearest(wanted, named, n=3, cutoff=0.5)
    hint = "`kvchat models catalogue` lists its models"
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    raise ModelFileError(f"the catalogue has no model {name!r}: {hint}")


def recommended_drafts(target: CatalogEntry) -> list[CatalogEntry]:
    """The models that can draft for one of the catalogue, the smallest first."""
    family = next((each for each in VOCABULARY_FAMILIES if re.match(each, target.name)), None)
    n_max = MAX_DRAFT_SHARE * target.n_parameters
    found = [
        each
        for each in (entries() if family else ())
        if re.match(family or "", each.name)
        and have_similar_sizes(target.n_vocab, each.n_vocab)
        and each.n_parameters <= n_max
    ]
    return sorted(found, key=lambda each: each.n_parameters)


def quantized_type(
    quantization: str, name: str, row_length: int, *, n_layers: int, is_tied: bool
) -> GgmlType:
    """The type of a matrix that the quantisation changes; raises as `CatalogEntry.header`."""
    mix = MIXES.get(quantization)
    if mix is None:
        near = nearest(quantization, QUANTIZATIONS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? Or choose" if near else "choose"
        raise UnknownQuantizationError(
            f"the catalogue has no quantisation {quantization!r}: {hint} one of "
            f"{', '.join(QUANTIZATIONS)}"
        )
    if mix.default in ("f32", "f16", "bf16"):
        return TYPES_BY_NAME[mix.default]
    if name == "output.weight" or (is_tied and name in EMBEDDINGS):
        kind = "q8_0" if mix.default == "q8_0" else "q6_K"
    elif quantization == "MXFP4_MOE" and "exps." in name:
        kind = "mxfp4"
    else:
        kind = mix.raised if _is_raised(mix, name, n_layers) else mix.default
    found = (TYPES_BY_NAME[each] for each in (kind, FALLBACKS.get(kind, kind), "f16"))
    return next(each for each in found if row_length % each.block_size == 0)


def _is_raised(mix: Mix, name: str, n_layers: int) -> bool:
    match, pattern = LAYER.match(name), RAISED_IN_SOME if mix.in_some else RAISED_IN_ALL
    if not mix.raised or match is None or not pattern.search(name):
        return False
    layer, eighth = int(match[1]), n_layers // 8
    is_at_end = layer < eighth or layer >= 7 * n_layers // 8
    return not mix.in_some or is_at_end or (layer - eighth) % 3 == 2


def _quantized(entry: CatalogEntry, quantization: str) -> Iterator[TensorInfo]:
    found = list(entry.tensors())
    is_tied = all(tensor.name != "output.weight" for tensor in found)
    n_layers, offset = len(entry.layers), 0
    for tensor in found:
        name, shape, kind = tensor.name, tensor.shape, tensor.type
        if kind.name == SNAPSHOT_TYPE:
            kind = quantized_type(quantization, name, shape[0], n_layers=n_layers, is_tied=is_tied)
        nbytes = kind.row_bytes(prod(shape))
        yield TensorInfo(name, shape, kind, offset, nbytes)
        offset += _padded(nbytes)


def _padded(nbytes: int) -> int:
    return -(-nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _tensor(row: str) -> TensorInfo:
    name, type_name, *dimensions = row.split(" ")
    kind, shape = TYPES_BY_NAME[type_name], tuple(map(int, dimensions))
    return TensorInfo(name, shape, kind, 0, kind.row_bytes(prod(shape)))
