"""What the tensors of a model weigh, by the part of the model that they belong to.

Parts as in llama.cpp 0c1e57098 (`llm_tensor_info_for`, `src/llama-arch.cpp`); overrides as in
`create_tensor` of `src/llama-model-loader.cpp`.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from engine.configuration import TensorOverride
from engine.errors import PresetError, shown
from engine.memory.hardware import ROW_MULTIPLES, Instructions, is_repacked
from engine.model.architecture import layer_counts
from engine.model.architectures import family_of
from engine.model.gguf import GgufFile, HeaderKeys, TensorInfo, cached_by_header

LAYER = re.compile(r"^(?:enc\.|dec\.)?blk\.(\d+)\.")
"""T5 has layers of an encoder and of a decoder, which share devices by their number."""
_ATOM = re.compile(r"\\.|\[\^?\]?[^\]]*\]", re.DOTALL)
_REPEAT = re.compile(r"[*+{]")
_GROUP = re.compile(r"\(([^()]*)\)")
_PREFIX = re.compile(r"\(\?(?:[:=!]|<[=!]|P<\w*>)")
_OPEN = "\0"
"""Stands for a group that may match in several ways."""
_NESTED = re.compile(rf"{_OPEN}[*+{{]")
_INEXACT = re.compile(rf"[*+?{{{_OPEN}]")
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Tensors that `--cpu-moe` keeps in RAM (llama.cpp, common/common.h)."""
OUTPUT_PREFIXES = ("output", "cls", "dense_", "altup_", "enc.output", "dec.output", "fc.")
FIRST_LAYER_PREFIXES = ("rope_", "token_embd_norm", "per_layer_model_proj", "per_layer_proj_norm")
UNUSED = "cross_attn_rel_b"
"""Part of the name of tensors that llama.cpp passes over (T5's decoder)."""
MAX_LAYERS = 512
"""Most layers that llama.cpp 0c1e57098 takes (`LLAMA_MAX_LAYERS`, `src/llama-hparams.h`)."""
MAX_PATTERN = 2000
"""Characters of an override's pattern."""
MAX_REPEATS = 3
"""Open repeats of a pattern: each multiplies the time by the length of a name."""
MAX_WAYS = 1024
"""Ways of a pattern through its alternatives."""
PADDING = 32
CPU = "CPU"


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of the tensors by the part of the model that they belong to."""

    input_bytes: int
    """Token embeddings: always in the memory of the CPU."""
    layer_bytes: tuple[int, ...]
    output_bytes: int
    """The output layer without tied embeddings."""
    tied_bytes: int
    """Embeddings that are the output layer too: a GPU gets a copy of them; 0 where none are."""
    moved_bytes: tuple[tuple[str, int], ...] = ()
    """Tensors that overrides put on a device of their own, by its name."""
    repacked_by: frozenset[Instructions] = frozenset()
    """Instructions of a CPU that gets a copy of tied embeddings, too."""

    @property
    def total_bytes(self) -> int:
        """All tensors that are loaded."""
        moved = sum(nbytes for _, nbytes in self.moved_bytes)
        return self.input_bytes + sum(self.layer_bytes) + self.output_bytes + moved


@cached_by_header(128)
def weights_of(
    file: GgufFile,
    overrides: tuple[TensorOverride, ...] = (),
    n_cpu_moe: int = 0,
    *,
    with_head: bool = False,
) -> Weights:
    """Sum the tensor table of a model, once for each header and set of overrides.

    The layers of an MTP head are listed, because `n_gpu_layers` counts them, and have no bytes
    unless it is asked for: llama.cpp does not load them for a main context alone.

    Raises:
        PresetError: the pattern of an override is no regular expression.
        ModelFileError: the header names no number of layers.
    """
    n_blocks, _ = layer_counts(HeaderKeys(file))
    rules = override_rules(overrides, n_cpu_moe)
    layers = [0] * n_blocks
    moved: dict[str, int] = defaultdict(int)
    inputs = outputs = 0
    embedding_output = output_as_embeddings(file)
    for tensor in loaded_tensors(file, with_head=with_head):
        index = layer_of(tensor.name, n_blocks)
        nbytes = padded_bytes(tensor)
        device = overridden(tensor.name, rules)
        if device is not None:
            moved[device] += nbytes
        elif index is not None:
            layers[index] += nbytes
        elif tensor.name.startswith(OUTPUT_PREFIXES):
            outputs += nbytes
            inputs += nbytes * (tensor is embedding_output)
        else:
            inputs += nbytes
    embeddings = tied_embeddings(file)
    tied = 0 if embeddings is None else padded_bytes(embeddings)
    if family_of(file.architecture).sharing is not None:
        outputs, embeddings, tied = outputs + tied, None, 0
    return Weights(
        inputs,
        tuple(layers),
        outputs,
        tied,
        tuple(sorted(moved.items())),
        frozenset(name for name in ROW_MULTIPLES if embeddings and is_repacked(embeddings, name)),
    )


def loaded_tensors(file: GgufFile, *, with_head: bool) -> Iterator[TensorInfo]:
    """The tensors that llama.cpp loads; those of an MTP head only if it is used."""
    n_blocks, n_trunk = layer_counts(HeaderKeys(file))
    loaded = family_of(file.architecture).loaded_of_head
    for tensor in file.tensors:
        index = layer_of(tensor.name, n_blocks)
        is_head = index is not None and index >= n_trunk
        if is_head and not with_head and not (loaded and re.search(loaded, tensor.name)):
            continue
        if UNUSED not in tensor.name:
            yield tensor


def expert_pattern(n_cpu_moe: int) -> str | None:
    """The pattern of the experts that stay in RAM: all below zero, None for none."""
    if not 0 <= n_cpu_moe < MAX_LAYERS:
        return EXPERTS
    layers = "|".join(map(str, range(n_cpu_moe)))
    return rf"blk\.({layers}){EXPERTS}" if layers else None


def override_rules(
    overrides: tuple[TensorOverride, ...], n_cpu_moe: int
) -> list[tuple[re.Pattern[str], str]]:
    """The patterns in the order in which llama.cpp tries them, each with its device.

    Raises:
        PresetError: a pattern is no regular expression.
    """
    rules = [(_compiled(override.pattern), override.device) for override in overrides]
    experts = expert_pattern(n_cpu_moe)
    if experts is not None:
        rules.append((re.compile(experts), CPU))
    return rules


def _compiled(pattern: str) -> re.Pattern[str]:
    if len(pattern) > MAX_PATTERN or not _is_cheap(pattern):
        raise PresetError(
            f"matching the tensor override {shown(pattern)} may never finish: use at most "
            f"{MAX_PATTERN} characters and {MAX_REPEATS} of `*`, `+` and `{{`, and do not "
            "nest them or repeat a group with `|`"
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise PresetError(
            f"the tensor override {pattern!r} is not a regular expression: {error}"
        ) from error


def _is_cheap(pattern: str) -> bool:
    """Whether a pattern can be matched in few ways: all of them are tried where none matches."""
    left = _PREFIX.sub("(", _ATOM.sub("a", pattern).replace(_OPEN, "a"))
    n_repeats, n_ways = len(_REPEAT.findall(left)), 2 ** left.count("?")
    while not _NESTED.search(left) and (group := _GROUP.search(left)) is not None:
        n_branches = group[1].count("|") + 1
        n_ways *= n_branches
        is_open = n_branches > 1 or _INEXACT.search(group[1])
        left = f"{left[: group.start()]}{_OPEN if is_open else 'a'}{left[group.end() :]}"
    return not _NESTED.search(left) and n_repeats <= MAX_REPEATS and n_ways <= MAX_WAYS


def overridden(name: str, rules: list[tuple[re.Pattern[str], str]]) -> str | None:
    """The device that the first matching rule names; None where none matches."""
    return next((device for pattern, device in rules if pattern.search(name)), None)


def layer_of(name: str, n_blocks: int) -> int | None:
    """The layer whose device a tensor follows; None for those of input and output."""
    match = LAYER.match(name)
    if match and int(match[1]) < n_blocks:
        return int(match[1])
    return 0 if n_blocks and name.startswith(FIRST_LAYER_PREFIXES) else None


@cached_by_header(128)
def moved_tensors(
    file: GgufFile, overrides: tuple[TensorOverride, ...], n_cpu_moe: int
) -> tuple[tuple[str, str], ...]:
    """The tensors that overrides put on a device of their own, and its name."""
    rules = override_rules(overrides, n_cpu_moe)
    found = {tensor.name: overridden(tensor.name, rules) for tensor in file.tensors if rules}
    return tuple((name, device) for name, device in found.items() if device is not None)


def tied_embeddings(file: GgufFile) -> TensorInfo | None:
    """The embeddings that are the output layer too; None where it has weights of its own."""
    if family_of(file.architecture).output in ("embeddings", "none"):
        return None
    tensors = {tensor.name: tensor for tensor in file.tensors}
    return None if "output.weight" in tensors else tensors.get("token_embd.weight")


def output_as_embeddings(file: GgufFile) -> TensorInfo | None:
    """The output layer of which CodeShell makes its embeddings where a file has none."""
    tensors = {tensor.name: tensor for tensor in file.tensors}
    if family_of(file.architecture).output != "also embeddings" or "token_embd.weight" in tensors:
        return None
    return tensors.get("output.weight")


def padded_bytes(tensor: TensorInfo) -> int:
    """Bytes of a tensor in a buffer."""
    return -(-tensor.nbytes // PADDING) * PADDING
