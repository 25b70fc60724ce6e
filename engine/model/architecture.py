"""What a model's layers keep, by llama.cpp's rules for each architecture."""

from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelFileError
from engine.model.gguf import GgufFile, read_gguf

MAX_LAYERS = 10_000
"""More than llama.cpp takes (512) by far, and few enough to count."""

FULL_ATTENTION = frozenset(
    {
        "apertus", "arcee", "arctic", "baichuan", "bitnet", "bloom", "chatglm", "codeshell",
        "command-r", "dbrx", "deci", "deepseek", "ernie4_5", "ernie4_5-moe", "exaone", "falcon",
        "gemma", "glm4", "glm4moe", "gpt2", "gptj", "gptneox", "granite", "granitemoe", "grok",
        "hunyuan-dense", "hunyuan-moe", "internlm2", "jais", "llama", "minicpm", "minicpm3",
        "mistral3", "mpt", "nemotron", "olmo", "olmoe", "orion", "phi2", "phi3", "phimoe", "qwen",
        "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "refact",
        "seed_oss", "smollm3", "stablelm", "starcoder", "starcoder2", "xverse",
    }
)  # fmt: skip
"""Architectures whose cache is keys and values of every token in every layer; a `sliding_window`
key of theirs is not read by llama.cpp."""


@dataclass(frozen=True, slots=True)
class WindowRule:
    """Which layers slide: period, phase, and the window where the file names none."""

    period: int | None
    """Every period-th layer is dense; None where the file must hold the pattern."""
    dense_first: bool = False
    default_window: int | None = None
    needs_key: bool = False
    """Whether the model is dense when the file names no window."""
    fixed_window: int | None = None
    """Window that counts whatever the file names."""
    only_n_layers: int | None = None
    """Number of layers of the only model of the family that slides."""


SLIDING = {
    "gemma2": WindowRule(2, default_window=4096),
    "gemma3": WindowRule(6, needs_key=True),
    "gemma3n": WindowRule(5),
    "gemma4": WindowRule(None),
    "cohere2": WindowRule(4),
    "cohere2moe": WindowRule(4, dense_first=True),
    "gpt-oss": WindowRule(2),
    "llama4": WindowRule(4, default_window=8192),
    "olmo2": WindowRule(4, needs_key=True),
    "exaone4": WindowRule(4, default_window=4096, only_n_layers=64),
    "exaone-moe": WindowRule(4, default_window=128),
    "smallthinker": WindowRule(4, dense_first=True, needs_key=True, fixed_window=4096),
    "afmoe": WindowRule(4, needs_key=True),
    "plamo3": WindowRule(8, needs_key=True),
    "mellum": WindowRule(4, needs_key=True),
}
"""Rules of llama.cpp 0c1e57098 (`src/models/*.cpp`, `load_arch_hparams`)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's share of the cache."""

    n_kv_heads: int
    k_head_dim: int
    v_head_dim: int
    window: int | None = None
    """Tokens that a sliding-window layer keeps; None keeps all."""

    @property
    def k_width(self) -> int:
        """Key elements of one token."""
        return self.n_kv_heads * self.k_head_dim

    @property
    def v_width(self) -> int:
        """Value elements of one token."""
        return self.n_kv_heads * self.v_head_dim


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the memory of a model depends on.

    `layers` are those that own a cache, by their index. `doubts` says why figures are estimates.
    """

    name: str
    n_layers: int
    n_ctx_train: int
    d_hidden: int
    n_heads: int
    n_vocab: int
    d_feed_forward: int
    n_experts: int
    n_experts_used: int
    layers: dict[int, Layer]
    doubts: tuple[str, ...] = ()

    @property
    def is_moe(self) -> bool:
        return self.n_experts > 0


@dataclass(frozen=True, slots=True)
class Model:
    """A model file and the architecture that its header describes."""

    file: GgufFile
    architecture: Architecture


def read_model(path: Path) -> Model:
    """Read header and architecture of a model file.

    Raises:
        ModelFileError: the file cannot be read, or lacks a key that its architecture needs.
    """
    file = read_gguf(path)
    return Model(file, architecture_of(file))


def architecture_of(file: GgufFile) -> Architecture:
    """Give the architecture that a header describes.

    Raises:
        ModelFileError: a key is missing without which no figure can be given.
    """
    name = file.architecture
    if not name:
        raise ModelFileError(
            f"{file.path.name} names no architecture (general.architecture): it is no model"
        )
    reader = _Reader(file, name)
    n_layers = reader.n_trunk_layers()
    d_hidden = reader.needed("embedding_length")
    heads = reader.per_layer("attention.head_count", n_layers, default=[0] * n_layers)
    kv_heads = reader.per_layer("attention.head_count_kv", n_layers, default=heads)
    windows, doubts = _windows(reader, n_layers)
    head_dim = d_hidden // heads[0] if heads[0] else 0
    widths = _HeadDims(reader, head_dim)
    n_owning = n_layers - reader.optional("attention.shared_kv_layers", 0)
    if name == "gemma3n":
        n_owning = min(20, n_layers)
    layers = {
        index: widths.layer(kv_heads[index], windows[index])
        for index in range(n_owning)
        if kv_heads[index]
    }
    return Architecture(
        name=name,
        n_layers=n_layers,
        n_ctx_train=reader.needed("context_length"),
        d_hidden=d_hidden,
        n_heads=max(heads),
        n_vocab=file.n_vocab or 0,
        d_feed_forward=max(
            reader.per_layer("feed_forward_length", n_layers, default=[0] * n_layers)
        ),
        n_experts=reader.optional("expert_count", 0),
        n_experts_used=reader.optional("expert_used_count", 0),
        layers=layers,
        doubts=(*doubts, *_doubts(reader)),
    )


class _Reader:
    """Keys of one architecture."""

    def __init__(self, file: GgufFile, name: str) -> None:
        self.file = file
        self.name = name

    def has(self, key: str) -> bool:
        return f"{self.name}.{key}" in self.file.values

    def optional(self, key: str, default: int) -> int:
        value = self.file.integer(f"{self.name}.{key}")
        return default if value is None else max(0, value)

    def needed(self, key: str) -> int:
        value = self.file.integer(f"{self.name}.{key}")
        if value is None or value <= 0:
            raise ModelFileError(
                f"{self.file.path.name} has no usable {self.name}.{key} (found {value}): "
                "the header is incomplete, or this is no language model"
            )
        return value

    def n_trunk_layers(self) -> int:
        """Give the layers that a main context runs, without those of a next-token head."""
        n_blocks = self.needed("block_count")
        if n_blocks > MAX_LAYERS:
            raise ModelFileError(
                f"{self.file.path.name} claims {n_blocks} layers; at most {MAX_LAYERS} are believed"
            )
        n_layers = n_blocks - self.optional("nextn_predict_layers", 0)
        if n_layers < 1:
            raise ModelFileError(
                f"{self.file.path.name} holds {n_blocks} layers of a next-token head and no model: "
                "choose the file of the model itself"
            )
        return n_layers

    def per_layer(self, key: str, n_layers: int, default: list[int] | None = None) -> list[int]:
        """Give a scalar or per-layer key for each layer."""
        array = self.file.integers(f"{self.name}.{key}")
        if array is not None:
            if len(array) < n_layers:
                raise ModelFileError(
                    f"{self.file.path.name} has {len(array)} values of {self.name}.{key} for "
                    f"{n_layers} layers: the header is damaged"
                )
            return list(array[:n_layers])
        if default is not None and not self.has(key):
            return default
        return [self.needed(key)] * n_layers


class _HeadDims:
    """Head sizes of dense and sliding layers."""

    def __init__(self, reader: _Reader, head_dim: int) -> None:
        self._k = reader.optional("attention.key_length", head_dim)
        self._v = reader.optional("attention.value_length", head_dim)
        self._k_swa = reader.optional("attention.key_length_swa", self._k)
        self._v_swa = reader.optional("attention.value_length_swa", self._v)

    def layer(self, n_kv_heads: int, window: int | None) -> Layer:
        if window is None:
            return Layer(n_kv_heads, self._k, self._v)
        return Layer(n_kv_heads, self._k_swa, self._v_swa, window)


def _windows(reader: _Reader, n_layers: int) -> tuple[list[int | None], tuple[str, ...]]:
    """Give each layer's window, and doubts about them."""
    dense: list[int | None] = [None] * n_layers
    rule = SLIDING.get(reader.name)
    if rule is None or rule.only_n_layers not in (None, n_layers):
        return dense, ()
    window = reader.optional("attention.sliding_window", 0)
    if reader.name == "llama4":
        window = 8192 if window or not reader.has("attention.sliding_window") else 0
    if not window and not rule.needs_key:
        window = rule.default_window or 0
    if not window:
        return dense, ()
    window = rule.fixed_window or window
    flags = reader.file.integers(f"{reader.name}.attention.sliding_window_pattern")
    if flags is not None and len(flags) >= n_layers:
        return [window if flag else None for flag in flags[:n_layers]], ()
    period = reader.optional("attention.sliding_window_pattern", rule.period or 0)
    if not period:
        return dense, ("the file does not say which layers slide: all are counted as dense",)
    return [_slides(i, period, rule, window) for i in range(n_layers)], ()


def _slides(index: int, period: int, rule: WindowRule, window: int) -> int | None:
    if rule.dense_first:
        return window if index % period else None
    return window if index % period < period - 1 else None


def _doubts(reader: _Reader) -> list[str]:
    """Say why the cache of an architecture is not known exactly."""
    doubts = []
    if reader.has("attention.key_length_mla") or reader.has("attention.kv_lora_rank"):
        doubts.append("latent attention (MLA): counted as plain keys and values, so too high")
    if reader.has("ssm.state_size") or reader.has("wkv.head_size") or reader.has("kda.head_dim"):
        doubts.append("recurrent layers: their state is not counted, attention is counted in all")
    if reader.has("shortconv.l_cache"):
        doubts.append("convolution layers: their small state is not counted")
    known = reader.name in FULL_ATTENTION or reader.name in SLIDING
    if not known and not doubts:
        doubts.append(f"{reader.name} is an architecture that kvchat has no rule for")
    return doubts
