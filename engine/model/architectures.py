"""What llama.cpp does for each architecture, beyond what its files say: one row for each.

Rules of llama.cpp 0c1e57098: `src/models/*.cpp` (`load_arch_hparams` and the graphs),
`create_memory` in `src/llama-model.cpp`, `src/llama-arch.cpp`. Layers, cache, weights and graph of
a model follow its row; a new architecture is a row, and its defaults are a plain decoder's.
"""

from dataclasses import dataclass
from typing import Literal

RecurrentLayers = Literal[
    "", "all", "beside attention", "by interval", "without block", "without heads"
]
StateKind = Literal[
    "", "convolution", "delta net", "kda", "linear attention", "mamba", "mamba2", "rwkv"
]
IndexerKind = Literal["", "blocks", "compressed", "latent pools", "pools", "tokens"]


@dataclass(frozen=True, slots=True)
class WindowRule:
    """Which layers slide: period, phase, and the window where the file names none."""

    period: int | None
    """Every period-th layer is dense; 0: none is; None: the file must hold the pattern."""
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


@dataclass(frozen=True, slots=True)
class Sharing:
    """Last layers that use the cache of others, with embeddings of a token for each layer.

    Zeros are numbers that the file names.
    """

    n_cached_layers: int = 0
    """First layers that own a cache."""
    layer_embedding: int = 0
    """Elements of a token's embedding for one layer (`n_embd_altup`)."""
    n_streams: int = 0
    """Streams of hidden states, by alternating updates (`n_altup`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What llama.cpp does for the models of one architecture."""

    is_known: bool = True
    """Whether cache and state are known to the byte."""
    not_alone: Literal["", "adapter", "draft head", "projector"] = ""
    """What a file is that holds no language model of its own."""
    gives_vectors: bool = False
    """Whether it makes embeddings, and generates no text."""
    has_cache: bool = True
    """Whether something is kept; encoders and diffusion models have every token there at once."""
    attends_in_batch: bool = False
    """Whether attention looks at the batch alone, although a cache is allocated."""
    may_be_latent: bool = False
    """Whether keys alone are kept (MLA) where the file names the head sizes of both views."""
    window: WindowRule | None = None
    """Which layers slide; None where a `sliding_window` key is not read."""
    sharing: Sharing | None = None
    recurrent: RecurrentLayers = ""
    """Which layers keep a state of constant size."""
    interval: int = 0
    """Every n-th layer attends, where the file names no other number."""
    state: StateKind = ""
    """What a row of state holds."""
    of_head: Literal["attends", "nothing", "recurs"] = "attends"
    """What layers of a next-token head do in a hybrid."""
    rolls_back: bool = False
    """Whether states keep rows to roll drafted tokens back (`llm_arch_supports_rs_rollback`)."""
    hashes_ngrams: bool = False
    """Whether some layers keep a history of n-grams that they hash (`ple_conv_state`)."""
    has_router_layer: bool = False
    """Whether one more layer with a head routes tokens."""
    loops: Literal["", "always", "named"] = ""
    """Whether layers run several times: always, or as often as the file says."""
    indexer: IndexerKind = ""
    """What sparse attention chooses by a cache of indexer keys; `compressed` keeps rows of keys
    for what left a window, in every layer."""
    indexer_layers: Literal["named", "all", "all unless named", "by context unless named"] = "named"
    """Which layers have an indexer of their own."""
    needs_top_k: bool = False
    """Whether there is no indexer where the file names no number of chosen tokens."""
    has_flash_attention: bool = True
    """Whether llama.cpp leaves flash attention on where it is asked for."""
    has_position_bias: bool = False
    """Whether scores are biased by position: they are stored, whatever is asked."""
    rotates_cache: bool = True
    """Whether queries, keys and values are rotated by a Hadamard matrix for a quantised cache."""
    gives_all_logits: bool = False
    """Whether every token of a batch gets logits, also those that nobody asks for."""
    n_logit_copies: int = 1
    """Copies of the logits: some are taken out."""
    image_rows: Literal["", "mapped", "stacked"] = ""
    """Where rows of an image's features are added: behind as many of the first layers (DeepStack),
    or before the layers that the file names."""
    output: Literal["", "also embeddings", "embeddings", "none"] = ""
    """Whether the output layer stands for embeddings that a file lacks, embeddings give the logits
    where they are, or there is no output layer."""
    loaded_of_head: str = ""
    """Pattern of a next-token head's tensors that are loaded although nothing uses them."""
    n_stream_copies: int = 0
    """Copies of the streams while hyper-connections mix them; 0 without such streams."""
    keeps_first_values: bool = False
    """Whether all layers take the values of the first one (RWKV 7)."""
    is_uneven: bool | None = None
    """Whether layers differ in their operations; None where those do that keep states."""
    wants_equal_slots: bool = False
    """Whether each separate cache has to have as many tokens of a micro-batch."""
    graph: Literal["", "unusual", "rough"] = ""
    """How far formulas of the compute buffer are off, beyond what a plain model's are."""


UNKNOWN = Family(is_known=False)
ENCODER = Family(has_cache=False, gives_vectors=True, output="none")
DIFFUSION = Family(has_cache=False)
PLAIN = (
    "apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bloom", "chatglm",
    "command-r", "dbrx", "deepseek", "deepseek2-ocr", "dots1", "ernie4_5",
    "ernie4_5-moe", "exaone", "falcon", "gemma", "glm4", "glm4moe", "gpt2", "gptneox",
    "granite", "granitemoe", "grovemoe", "hunyuan-dense", "hunyuan-moe", "hunyuan_vl",
    "internlm2", "jais", "jais2", "llama", "maincoder", "minicpm", "minimax-m2", "mistral3",
    "mpt", "nemotron", "olmo", "olmoe", "openelm", "orion", "paddleocr", "pangu-embedded",
    "phi2", "phi3", "phimoe", "plamo", "plm", "pockettts", "qwen", "qwen2", "qwen2moe",
    "qwen2vl", "qwen3", "qwen3moe", "qwen3tts", "refact", "seed_oss", "smollm3", "stablelm",
    "starcoder", "starcoder2", "talkie", "xverse",
)  # fmt: skip
"""Decoders of which every layer keeps keys and values of every token."""

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(PLAIN, Family()),
    "afmoe": Family(window=WindowRule(4), is_uneven=True),
    "arwkv7": Family(recurrent="all", state="rwkv", keeps_first_values=True),
    "bailingmoe3": Family(
        may_be_latent=True,
        recurrent="without heads",
        state="kda",
        of_head="recurs",
        rolls_back=True,
        graph="rough",
    ),
    "bert": ENCODER,
    "bitnet": Family(output="embeddings"),
    "chameleon": Family(graph="rough", n_logit_copies=3),
    "clip": Family(not_alone="projector"),
    "codeshell": Family(output="also embeddings"),
    "cogvlm": Family(gives_all_logits=True, graph="unusual"),
    "cohere2": Family(window=WindowRule(4)),
    "cohere2moe": Family(window=WindowRule(4, dense_first=True)),
    "controlvector": Family(not_alone="adapter"),
    "deci": Family(graph="rough"),
    "deepseek2": Family(may_be_latent=True),
    "deepseek32": Family(may_be_latent=True, indexer="tokens", indexer_layers="all"),
    "deepseek4": Family(
        rolls_back=True,
        indexer="compressed",
        graph="rough",
        n_stream_copies=2,
        is_uneven=False,
    ),
    "dflash": Family(not_alone="draft head"),
    "dots3note": Family(
        may_be_latent=True,
        window=WindowRule(None),
        indexer="tokens",
        graph="rough",
    ),
    "dream": DIFFUSION,
    "eagle3": Family(not_alone="draft head"),
    "eurobert": ENCODER,
    "exaone-moe": Family(window=WindowRule(4), is_uneven=True),
    "exaone4": Family(window=WindowRule(4, default_window=4096, only_n_layers=64)),
    "falcon-h1": Family(recurrent="beside attention", state="mamba2"),
    "gemma-embedding": Family(has_cache=False, gives_vectors=True),
    "gemma2": Family(window=WindowRule(2, default_window=4096)),
    "gemma3": Family(window=WindowRule(6, needs_key=True)),
    "gemma3n": Family(
        window=WindowRule(5),
        graph="unusual",
        sharing=Sharing(n_cached_layers=20, layer_embedding=256, n_streams=4),
    ),
    "gemma4": Family(window=WindowRule(None), graph="unusual", sharing=Sharing()),
    "gemma4-assistant": Family(not_alone="draft head"),
    "glm-dsa": Family(
        may_be_latent=True,
        indexer="tokens",
        indexer_layers="by context unless named",
        loaded_of_head=r"\.exp_probs_b",
    ),
    "glm5-next": Family(
        may_be_latent=True,
        recurrent="without heads",
        state="kda",
        of_head="nothing",
        rolls_back=True,
        indexer="latent pools",
        indexer_layers="all unless named",
        graph="rough",
        n_stream_copies=2,
        is_uneven=False,
    ),
    "gpt-oss": Family(window=WindowRule(2)),
    "granite_swa": Family(window=WindowRule(None), image_rows="mapped"),
    "granitehybrid": Family(
        recurrent="without heads",
        state="mamba2",
        is_uneven=False,
    ),
    "graniteswitch": Family(graph="rough", has_router_layer=True),
    "grok": Family(has_flash_attention=False),
    "hrm_text": Family(graph="unusual", loops="always"),
    "hy_v3": Family(loaded_of_head=r"\.(ffn_|exp_probs|nextn\.(embed_tokens|shared_head_head))"),
    "hy_v4": Family(may_be_latent=True, indexer="tokens", needs_top_k=True, n_stream_copies=3),
    "jamba": Family(recurrent="without heads", state="mamba"),
    "jina-bert-v2": ENCODER,
    "jina-bert-v3": ENCODER,
    "kimi-k3": Family(
        may_be_latent=True,
        recurrent="without heads",
        state="kda",
        rolls_back=True,
        graph="rough",
    ),
    "kimi-linear": Family(
        may_be_latent=True,
        recurrent="without heads",
        state="kda",
        graph="rough",
        wants_equal_slots=True,
    ),
    "laguna": Family(window=WindowRule(4, dense_first=True, needs_key=True)),
    "lfm2": Family(
        window=WindowRule(0, needs_key=True),
        recurrent="without heads",
        state="convolution",
        rolls_back=True,
        rotates_cache=False,
    ),
    "lfm2moe": Family(
        recurrent="without heads",
        state="convolution",
        rolls_back=True,
        rotates_cache=False,
        is_uneven=False,
    ),
    "llada": DIFFUSION,
    "llada-moe": DIFFUSION,
    "llama-embed": Family(attends_in_batch=True, gives_vectors=True),
    "llama4": Family(
        window=WindowRule(4, default_window=8192, zero_is_dense=True, fixed_window=8192),
        is_uneven=True,
    ),
    "mamba": Family(recurrent="all", state="mamba"),
    "mamba2": Family(recurrent="all", state="mamba2"),
    "maple": Family(window=WindowRule(None)),
    "mellum": Family(window=WindowRule(4, needs_key=True), is_uneven=True),
    "mimo2": Family(window=WindowRule(None)),
    "minicpm3": Family(graph="unusual"),
    "minimax-01": Family(
        recurrent="by interval",
        interval=8,
        state="linear attention",
        graph="rough",
        wants_equal_slots=True,
    ),
    "minimax-m3": Family(indexer="blocks"),
    "mistral4": Family(may_be_latent=True),
    "mmproj": Family(not_alone="projector"),
    "modern-bert": ENCODER,
    "muse-glimmer": Family(window=WindowRule(4)),
    "nanbeige": Family(graph="unusual", loops="named"),
    "nemotron_h": Family(
        recurrent="without block",
        state="mamba2",
        rolls_back=True,
    ),
    "nemotron_h_moe": Family(
        recurrent="without block",
        state="mamba2",
        rolls_back=True,
    ),
    "neo-bert": ENCODER,
    "nomic-bert": ENCODER,
    "nomic-bert-moe": ENCODER,
    "olmo2": Family(window=WindowRule(4, needs_key=True)),
    "plamo2": Family(recurrent="without heads", state="mamba2"),
    "plamo3": Family(window=WindowRule(8, needs_key=True)),
    "qwen35": Family(recurrent="by interval", interval=4, state="delta net", rolls_back=True),
    "qwen35moe": Family(recurrent="by interval", interval=4, state="delta net", rolls_back=True),
    "qwen3next": Family(recurrent="by interval", interval=4, state="delta net"),
    "qwen3vl": Family(image_rows="stacked"),
    "qwen3vlmoe": Family(image_rows="stacked"),
    "qwen4exp": Family(
        recurrent="by interval",
        interval=4,
        state="delta net",
        rolls_back=True,
        indexer="pools",
        indexer_layers="all",
        n_stream_copies=4,
        hashes_ngrams=True,
    ),
    "rnd1": DIFFUSION,
    "rwkv6": Family(recurrent="all", state="rwkv"),
    "rwkv6qwen2": Family(recurrent="all", state="rwkv"),
    "rwkv7": Family(recurrent="all", state="rwkv", keeps_first_values=True),
    "smallthinker": Family(
        window=WindowRule(4, dense_first=True, needs_key=True, fixed_window=4096),
    ),
    "spark2_5": Family(window=WindowRule(None)),
    "step35": Family(window=WindowRule(None), graph="unusual"),
    "t5": Family(has_position_bias=True),
    "t5encoder": Family(attends_in_batch=True, has_position_bias=True, gives_vectors=True),
    "wavtokenizer-dec": Family(has_cache=False, gives_vectors=True),
}
"""Every architecture that llama.cpp keeps a known cache for, by the name in its files."""


def family_of(name: str) -> Family:
    """The row of an architecture; defaults for a name without one, and the doubt about them."""
    return FAMILIES.get(name, UNKNOWN)
