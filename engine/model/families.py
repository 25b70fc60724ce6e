"""What llama.cpp does for each architecture: the tables behind `architecture.py`.

Rules of llama.cpp 0c1e57098: `src/models/*.cpp` (`load_arch_hparams`), `create_memory` in
`src/llama-model.cpp`, `src/llama-arch.cpp`.
"""

from dataclasses import dataclass

FULL_ATTENTION = frozenset(
    {
        "apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bitnet", "bloom",
        "chameleon", "chatglm", "codeshell", "cogvlm", "command-r", "dbrx", "deci", "deepseek",
        "deepseek2-ocr", "dots1", "ernie4_5", "ernie4_5-moe", "exaone", "falcon", "gemma", "glm4",
        "glm4moe", "gpt2", "gptneox", "granite", "granitemoe", "graniteswitch", "grok",
        "grovemoe", "hrm_text", "hunyuan-dense", "hunyuan-moe", "hunyuan_vl", "hy_v3", "internlm2",
        "jais", "jais2", "llama", "llama-embed", "maincoder", "minicpm", "minicpm3", "minimax-m2",
        "mistral3", "mpt", "nanbeige", "nemotron", "olmo", "olmoe", "openelm", "orion", "paddleocr",
        "pangu-embedded", "phi2", "phi3", "phimoe", "plamo", "plm", "pockettts", "qwen", "qwen2",
        "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3tts", "qwen3vl", "qwen3vlmoe", "refact",
        "seed_oss", "smollm3", "stablelm", "starcoder", "starcoder2", "t5", "t5encoder", "talkie",
        "xverse",
    }
)  # fmt: skip
"""Keys and values of every token in every layer; a `sliding_window` key is not read."""

LATENT = frozenset({"deepseek2", "deepseek32", "dots3note", "glm-dsa", "hy_v4", "mistral4"})
"""Latent attention: keys only, where the file names the head sizes of both views."""

NO_CACHE = frozenset(
    {
        "bert", "dream", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llada",
        "llada-moe", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "rnd1",
        "wavtokenizer-dec",
    }
)  # fmt: skip
"""Encoders and diffusion models: every token is there at once, and nothing is kept."""

IN_BATCH = NO_CACHE | {"llama-embed", "t5encoder"}
"""Attention looks at the batch alone, also where a cache is allocated."""

POSITION_BIAS = frozenset({"t5", "t5encoder"})
"""Scores are biased by position: they are stored, whatever is asked."""

DEEP_STACKS = frozenset({"qwen3vl", "qwen3vlmoe"})
"""Rows of an image's features are added behind as many of the first layers (DeepStack)."""

MAPPED_FEATURES = frozenset({"granite_swa"})
"""They are added before the layers that the header names."""

STREAMED = frozenset({"deepseek4", "glm5-next", "hy_v4", "qwen4exp"})
"""Several streams of hidden states (hyper-connections)."""

ALL_LOGITS = frozenset({"cogvlm"})
"""Every token of a batch gets logits, also those that nobody asks for."""

RECURRENT = frozenset({"arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7"})
"""A state of constant size in every layer, and no cache."""

MAMBA = frozenset({"mamba", "mamba2"})
"""Those of them whose state is a scan's; the others mix tokens (RWKV)."""

UNGROUPED = frozenset({"jamba", "mamba"})
"""Scans without groups: the first Mamba."""

DELTA_ATTENTION = frozenset({"bailingmoe3", "glm5-next", "kimi-k3", "kimi-linear"})
"""Hybrids whose recurrent layers keep a matrix for each head (Kimi Delta Attention)."""

SHORT_CONVOLUTION = frozenset({"lfm2", "lfm2moe"})
"""Hybrids whose other layers are a convolution over the last few tokens."""

INTERVAL_HYBRIDS = {
    "qwen3next": 4,
    "qwen35": 4,
    "qwen35moe": 4,
    "qwen4exp": 4,
    "minimax-01": 8,
}
"""Every n-th layer attends; n is `full_attention_interval`, with this default."""

HEADLESS_HYBRIDS = frozenset(
    {
        "bailingmoe3", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2",
        "lfm2moe", "nemotron_h", "nemotron_h_moe", "plamo2",
    }
)  # fmt: skip
"""A layer without key-value heads is recurrent."""

ROLLS_BACK = frozenset(
    {
        "bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h",
        "nemotron_h_moe", "qwen35", "qwen35moe", "qwen4exp",
    }
)  # fmt: skip
"""Recurrent states that keep rows to roll drafted tokens back (`llm_arch_supports_rs_rollback`)."""

NO_FLASH_ATTENTION = frozenset({"grok"})
"""llama.cpp turns flash attention off whatever is asked."""


@dataclass(frozen=True, slots=True)
class WindowRule:
    """Which layers slide: period, phase, and the window where the file names none."""

    period: int | None
    """Every period-th layer is dense; None where the file must hold the pattern."""
    dense_first: bool = False
    default_window: int | None = None
    needs_key: bool = False
    """Whether the model is dense when the file names no window."""
    zero_is_dense: bool = False
    """Whether a window of 0 in the file means none, where llama.cpp has a default."""
    fixed_window: int | None = None
    """Window that counts whatever the file names."""
    only_n_layers: int | None = None
    """Number of layers of the only model of the family that slides."""


SLIDING = {
    "afmoe": WindowRule(4),
    "cohere2": WindowRule(4),
    "cohere2moe": WindowRule(4, dense_first=True),
    "dots3note": WindowRule(None),
    "exaone-moe": WindowRule(4),
    "exaone4": WindowRule(4, default_window=4096, only_n_layers=64),
    "gemma2": WindowRule(2, default_window=4096),
    "gemma3": WindowRule(6, needs_key=True),
    "gemma3n": WindowRule(5),
    "gemma4": WindowRule(None),
    "gpt-oss": WindowRule(2),
    "granite_swa": WindowRule(None),
    "laguna": WindowRule(4, dense_first=True, needs_key=True),
    "llama4": WindowRule(4, default_window=8192, zero_is_dense=True, fixed_window=8192),
    "maple": WindowRule(None),
    "mellum": WindowRule(4, needs_key=True),
    "mimo2": WindowRule(None),
    "muse-glimmer": WindowRule(4),
    "olmo2": WindowRule(4, needs_key=True),
    "plamo3": WindowRule(8, needs_key=True),
    "smallthinker": WindowRule(4, dense_first=True, needs_key=True, fixed_window=4096),
    "spark2_5": WindowRule(None),
    "step35": WindowRule(None),
}
"""Architectures with sliding-window layers; `lfm2` slides in every layer that attends."""

INDEXED = frozenset(
    {"deepseek32", "dots3note", "glm-dsa", "glm5-next", "hy_v4", "minimax-m3", "qwen4exp"}
)
"""Sparse attention: a cache of indexer keys beside the main one."""

COMPRESSED = frozenset({"deepseek4"})
"""Every layer slides; what leaves the window is kept in compressed rows of keys."""

EXACT = (
    FULL_ATTENTION | LATENT | NO_CACHE | RECURRENT | HEADLESS_HYBRIDS | INDEXED | COMPRESSED
    | set(INTERVAL_HYBRIDS) | set(SLIDING) | {"falcon-h1"}
)  # fmt: skip
"""Architectures whose cache and state are known to the byte."""

NOT_ALONE = {
    "clip": "a projector for images or sound: it runs beside a language model (--mmproj)",
    "dflash": "a draft head: it runs beside its target only",
    "eagle3": "a draft head: it runs beside its target only",
    "gemma4-assistant": "a draft head: it runs beside its target only",
}
"""Files that are no language model of their own."""
