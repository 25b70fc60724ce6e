"""Bytes of a model's tensors, by the part of the model that they belong to.

Parts as in llama.cpp 0c1e57098 (`llm_tensor_info_for`, `src/llama-arch.cpp`); overrides as in
`create_tensor` of `src/llama-model-loader.cpp`.
"""

import re
from math import prod
from typing import NamedTuple

from engine.configuration import TensorOverride
from engine.errors import PresetError, shown
from engine.memory.hardware import Instructions
from engine.model.architecture import layer_counts
from engine.model.architectures import family_of
from engine.model.gguf import GgufFile, HeaderKeys, TensorInfo, cached_by_header

LAYER = re.compile(r"^(?:enc\.|dec\.)?blk\.(\d+)\.")
"""T5 has layers of an encoder and of a decoder, which share devices by their number."""
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Tensors that `--cpu-moe` keeps in RAM (llama.cpp, common/common.h)."""
OUTPUT_PREFIXES = ("output", "cls", "dense_", "altup_", "enc.output", "dec.output", "fc.")
FIRST_LAYER_PREFIXES = ("rope_", "token_embd_norm", "per_layer_model_proj", "per_layer_proj_norm")
UNUSED = "cross_attn_rel_b"  # T5's decoder: llama.cpp does not load it
MAX_LAYERS = 512  # `LLAMA_MAX_LAYERS`, `src/llama-hparams.h`
MAX_PATTERN = 2000  # characters of an override's pattern
MAX_REPEATS = 3  # open repeats of a pattern: each multiplies the time by the length of a name
MAX_WAYS = 1024  # ways of a pattern through its alternatives
PADDING = 32
EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"
CPU = "CPU"
_ATOM = re.compile(r"\\.|\[\^?\]?[^\]]*\]", re.DOTALL)
_PREFIX = re.compile(r"\(\?(?:[:=!]|<[=!]|P<\w*>)")
_EXACT_GROUP = re.compile(r"\([^()|*+?{]*\)")
_REPEAT, _REPEATED_GROUP = re.compile(r"[*+{]"), re.compile(r"\)[*+{]")
REPACKED_X86 = {"q4_0": 8, "q4_K": 8, "iq4_nl": 8, "mxfp4": 8}
REPACKED: dict[Instructions, dict[str, int]] = {
    "none": {},
    "avx2": REPACKED_X86,
    "avx512": REPACKED_X86 | {"q2_K": 8},
    "arm": {
        "q4_0": 4, "q4_K": 8, "q5_K": 8, "q6_K": 8, "iq4_nl": 4, "mxfp4": 4, "q8_0": 4, "q1_0": 4,
    },
}  # fmt: skip
"""Types that llama.cpp rearranges for a processor, and of what their number of rows must be a
multiple (`ggml_repack_get_optimal_repack_type`, `ggml/src/ggml-cpu/repack.cpp`); the layouts of
Intel's AMX, RISC-V and KleidiAI are left out. On ARM the matrix products (i8mm) and vectors of 256
bits (SVE) change the layout only."""


def is_repacked(tensor: TensorInfo, instructions: Instructions) -> bool:
    """Whether a matrix, or the matrices of experts, are rearranged for these instructions."""
    multiple = REPACKED[instructions].get(tensor.type.name)
    n_dimensions = 3 if "exps" in tensor.name else 2
    return (
        multiple is not None
        and len(tensor.shape) == n_dimensions
        and tensor.shape[1] % multiple == 0
    )


class TensorPart(NamedTuple):
    """A tensor that llama.cpp loads, and the part of the model that it belongs to."""

    tensor: TensorInfo
    layer: int | None
    """The layer whose device it follows; None for input and output."""
    override: str | None
    """The device that the first matching override names."""
    is_head: bool
    """Whether the tensor is loaded only if the MTP head is used."""
    is_tied: bool
    """Whether the tensor is the embeddings and also the output layer."""
    is_embedding: bool
    """Whether it is the output layer of which CodeShell makes its missing embeddings."""

    @property
    def is_output(self) -> bool:
        """Whether the tensor is on the device of the output layer, unless it is overridden."""
        return self.layer is None and self.tensor.name.startswith(OUTPUT_PREFIXES)

    @property
    def nbytes(self) -> int:
        """Bytes in a buffer."""
        return -(-self.tensor.nbytes // PADDING) * PADDING


@cached_by_header(4)
def tensor_parts(
    file: GgufFile, overrides: tuple[TensorOverride, ...], n_cpu_moe: int
) -> list[TensorPart]:
    """The tensors that llama.cpp loads, those of an MTP head too.

    Raises:
        PresetError: the pattern of an override is no regular expression.
        ModelFileError: the header names no number of layers.
    """
    n_blocks, n_trunk = layer_counts(HeaderKeys(file))
    rules = override_rules(overrides, n_cpu_moe)
    family, names = family_of(file.architecture), {tensor.name for tensor in file.tensors}
    has_tied = OUTPUT not in names and family.output not in ("embeddings", "none")
    has_embedding = EMBEDDINGS not in names and family.output == "also embeddings"
    parts = []
    for tensor in file.tensors:
        name = tensor.name
        if UNUSED in name:
            continue
        layer = _layer_of(name, n_blocks)
        is_always = family.loaded_of_head and re.search(family.loaded_of_head, name)
        part = TensorPart(
            tensor,
            layer,
            override=next((device for rule, device in rules if rule.search(name)), None),
            is_head=layer is not None and layer >= n_trunk and not is_always,
            is_tied=has_tied and name == EMBEDDINGS,
            is_embedding=has_embedding and name == OUTPUT,
        )
        parts.append(part)
    return parts


def _layer_of(name: str, n_blocks: int) -> int | None:
    match = LAYER.match(name)
    if match and int(match[1]) < n_blocks:
        return int(match[1])
    return 0 if n_blocks and name.startswith(FIRST_LAYER_PREFIXES) else None


@cached_by_header(64)
def layer_bytes(
    file: GgufFile, overrides: tuple[TensorOverride, ...] = (), n_cpu_moe: int = 0
) -> list[int]:
    """Bytes of each layer, and of the output layer with embeddings that are tied to it.

    The layers of an MTP head are listed, because `n_gpu_layers` counts them, and have no bytes:
    llama.cpp does not load them for a main context alone. Raises as `tensor_parts` does.
    """
    sizes = [0] * (layer_counts(HeaderKeys(file))[0] + 1)
    for part in tensor_parts(file, overrides, n_cpu_moe):
        is_moved = part.override is not None or part.is_head
        if part.is_tied or (part.is_output and not is_moved):
            sizes[-1] += part.nbytes
        elif part.layer is not None and not is_moved:
            sizes[part.layer] += part.nbytes
    return sizes


def expert_pattern(n_cpu_moe: int) -> str | None:
    """Name pattern of the experts that stay in RAM: a negative number is all; None for 0."""
    if not 0 <= n_cpu_moe < MAX_LAYERS:
        return EXPERTS
    layers = "|".join(map(str, range(n_cpu_moe)))
    return rf"blk\.({layers}){EXPERTS}" if layers else None


def override_rules(
    overrides: tuple[TensorOverride, ...], n_cpu_moe: int
) -> list[tuple[re.Pattern[str], str]]:
    """The patterns in the order in which llama.cpp tries them, each with its device."""
    rules = [(_compiled(override.pattern), override.device) for override in overrides]
    experts = expert_pattern(n_cpu_moe)
    if experts is not None:
        rules.append((re.compile(experts), CPU))
    return rules


def _compiled(pattern: str) -> re.Pattern[str]:
    if len(pattern) > MAX_PATTERN or not _is_cheap(pattern):
        raise PresetError(
            f"the tensor override {shown(pattern)} is too complex to match: use at most "
            f"{MAX_PATTERN} characters and at most {MAX_REPEATS} repetitions (`*`, `+`, `{{`) in "
            "total; put no repetition inside another, and do not repeat a group with `|`"
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise PresetError(
            f"the tensor override {pattern!r} is not a regular expression: {error}"
        ) from error


def _is_cheap(pattern: str) -> bool:
    """Whether a pattern can be matched in few ways: all of them are tried where none matches."""
    text = _EXACT_GROUP.sub("a", _PREFIX.sub("(", _ATOM.sub("a", pattern)))
    n_ways = 2 ** text.count("?") * prod(part.count("|") + 1 for part in text.split("("))
    n_repeats = len(_REPEAT.findall(text))
    return not _REPEATED_GROUP.search(text) and n_repeats <= MAX_REPEATS and n_ways <= MAX_WAYS
