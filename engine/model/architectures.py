"""Rules of llama.cpp for each architecture that no model file has: one row each.

Rules of llama.cpp 0c1e57098: `src/models/*.cpp` (`load_arch_hparams` and the graphs),
`create_memory` in `src/llama-model.cpp`, `src/llama-arch.cpp`. Layers, cache, weights and graph of
a model follow its row; a new architecture is a row, and the defaults are a plain decoder's.
"""

from dataclasses import dataclass
from functools import partial
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
    """Which layers have a sliding window, and how long it is."""

    period: int | None  # every period-th layer is dense; 0: none is; None: the file has the pattern
    dense_first: bool = False
    default_window: int | None = None
    needs_key: bool = False  # whether the model is dense if the file has no window
    zero_is_dense: bool = False  # whether 0 in the file means no window, in spite of a default
    fixed_window: int | None = None  # window in place of the file's
    only_n_layers: int | None = None  # layers of the only model of the family with a window


@dataclass(frozen=True, slots=True)
class Sharing:
    """Last layers that use the cache of others; zeros are numbers of the file."""

    n_cached_layers: int = 0  # first layers that own a cache
    layer_embedding: int = 0  # elements of a token's embedding for one layer (`n_embd_altup`)
    n_streams: int = 0  # streams of hidden states, by alternating updates (`n_altup`)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The rules of llama.cpp for one architecture."""

    is_known: bool = True  # whether cache and state are exact
    not_alone: Literal["", "adapter", "draft head", "projector"] = ""
    """The purpose of a file without a language model."""
    gives_vectors: bool = False  # whether it makes embeddings instead of text
    has_cache: bool = True  # False for encoders and diffusion: they process all tokens at once
    attends_in_batch: bool = False  # whether attention ends at the batch, although there is a cache
    may_be_latent: bool = False  # whether only keys are cached (MLA) if the file has both sizes
    window: WindowRule | None = None  # None ignores a `sliding_window` key
    sharing: Sharing | None = None
    recurrent: RecurrentLayers = ""  # which layers have a state of constant size
    interval: int = 0  # every n-th layer attends, unless the file has another number
    state: StateKind = ""  # content of a row of state
    of_head: Literal["attends", "nothing", "recurs"] = "attends"  # what layers of an MTP head do
    rolls_back: bool = False  # whether states drop drafted tokens (`llm_arch_supports_rs_rollback`)
    hashes_ngrams: bool = False  # whether layers have a history of n-grams (`ple_conv_state`)
    has_router_layer: bool = False  # whether one more layer with a head routes tokens
    loops: Literal["", "always", "named"] = ""  # layers that run several times, `named` by the file
    indexer: IndexerKind = ""
    """The unit that sparse attention selects by indexer keys; `compressed` caches compressed keys
    of tokens outside a window in every layer."""
    indexer_layers: Literal["named", "all", "all_unless_named", "by_context"] = "named"
    """Which layers have an indexer of their own."""
    needs_top_k: bool = False  # whether an indexer needs a number of chosen tokens in the file
    has_flash_attention: bool = True
    has_position_bias: bool = False  # whether scores have a bias by position, and are stored
    rotates_cache: bool = True  # whether a Hadamard matrix rotates Q, K and V for a quantised cache
    gives_all_logits: bool = False  # whether every token of a batch gets logits
    image_rows: Literal["", "mapped", "stacked"] = ""
    """How image features are added: after the first layers (DeepStack), or before layers that the
    file names."""
    output: Literal["", "also embeddings", "embeddings", "none"] = ""
    """Whether output weights replace missing embeddings, embeddings give the logits, or there is
    no output layer."""
    loaded_of_head: str = ""  # pattern of an MTP head's tensors that are loaded but not used
    has_streams: bool = False  # whether layers exchange hidden states (hyper-connections)
    keeps_first_values: bool = False  # whether all layers use the values of the first one (RWKV 7)
    is_uneven: bool | None = None  # whether layers differ in operations; None: those with states do
    wants_equal_slots: bool = False  # whether separate caches need equal shares of a ubatch
    graph: Literal["", "unusual", "rough"] = ""  # tolerance of the compute buffer


UNKNOWN = Family(is_known=False)
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
"""Decoders whose layers all cache keys and values of every token."""

ENCODERS = (
    "bert", "eurobert", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "nomic-bert",
    "nomic-bert-moe",
)  # fmt: skip
KDA = partial(Family, may_be_latent=True, recurrent="without heads", state="kda")
DELTA_NET = partial(Family, recurrent="by interval", interval=4, state="delta net")
SHORT_CONVOLUTION = partial(
    Family, recurrent="without heads", state="convolution", rolls_back=True, rotates_cache=False
)

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(PLAIN, Family()),
    **dict.fromkeys(ENCODERS, Family(has_cache=False, gives_vectors=True, output="none")),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), Family(has_cache=False)),
    **dict.fromkeys(("clip", "mmproj"), Family(not_alone="projector")),
    **dict.fromkeys(("dflash", "eagle3", "gemma4-assistant"), Family(not_alone="draft head")),
    **dict.fromkeys(("afmoe", "exaone-moe"), Family(window=WindowRule(4), is_uneven=True)),
    **dict.fromkeys(("cohere2", "muse-glimmer"), Family(window=WindowRule(4))),
    **dict.fromkeys(("deepseek2", "mistral4"), Family(may_be_latent=True)),
    **dict.fromkeys(
        ("gemma-embedding", "wavtokenizer-dec"), Family(has_cache=False, gives_vectors=True)
    ),
    **dict.fromkeys(("maple", "mimo2", "spark2_5"), Family(window=WindowRule(None))),
    **dict.fromkeys(
        ("nemotron_h", "nemotron_h_moe"),
        Family(recurrent="without block", state="mamba2", rolls_back=True),
    ),
    **dict.fromkeys(("qwen35", "qwen35moe"), DELTA_NET(rolls_back=True)),
    **dict.fromkeys(("qwen3vl", "qwen3vlmoe"), Family(image_rows="stacked")),
    **dict.fromkeys(("rwkv6", "rwkv6qwen2"), Family(recurrent="all", state="rwkv")),
    **dict.fromkeys(
        ("arwkv7", "rwkv7"), Family(recurrent="all", state="rwkv", keeps_first_values=True)
    ),
    "bailingmoe3": KDA(of_head="recurs", rolls_back=True, graph="rough"),
    "bitnet": Family(output="embeddings"),
    "chameleon": Family(graph="rough"),
    "codeshell": Family(output="also embeddings"),
    "cogvlm": Family(gives_all_logits=True, graph="unusual"),
    "cohere2moe": Family(window=WindowRule(4, dense_first=True)),
    "controlvector": Family(not_alone="adapter"),
    "deci": Family(graph="rough"),
    "deepseek32": Family(may_be_latent=True, indexer="tokens", indexer_layers="all"),
    "deepseek4": Family(
        rolls_back=True, indexer="compressed", graph="rough", has_streams=True, is_uneven=False
    ),
    "dots3note": Family(
        may_be_latent=True, window=WindowRule(None), indexer="tokens", graph="rough"
    ),
    "exaone4": Family(window=WindowRule(4, default_window=4096, only_n_layers=64)),
    "falcon-h1": Family(recurrent="beside attention", state="mamba2"),
    "gemma2": Family(window=WindowRule(2, default_window=4096)),
    "gemma3": Family(window=WindowRule(6, needs_key=True)),
    "gemma3n": Family(
        window=WindowRule(5),
        graph="unusual",
        sharing=Sharing(n_cached_layers=20, layer_embedding=256, n_streams=4),
    ),
    "gemma4": Family(window=WindowRule(None), graph="unusual", sharing=Sharing()),
    "glm-dsa": Family(
        may_be_latent=True,
        indexer="tokens",
        indexer_layers="by_context",
        loaded_of_head=r"\.exp_probs_b",
    ),
    "glm5-next": KDA(
        of_head="nothing",
        rolls_back=True,
        indexer="latent pools",
        indexer_layers="all_unless_named",
        graph="rough",
        has_streams=True,
        is_uneven=False,
    ),
    "gpt-oss": Family(window=WindowRule(2)),
    "granite_swa": Family(window=WindowRule(None), image_rows="mapped"),
    "granitehybrid": Family(recurrent="without heads", state="mamba2", is_uneven=False),
    "graniteswitch": Family(graph="rough", has_router_layer=True),
    "grok": Family(has_flash_attention=False),
    "hrm_text": Family(graph="unusual", loops="always"),
    "hy_v3": Family(loaded_of_head=r"\.(ffn_|exp_probs|nextn\.(embed_tokens|shared_head_head))"),
    "hy_v4": Family(may_be_latent=True, indexer="tokens", needs_top_k=True, has_streams=True),
    "jamba": Family(recurrent="without heads", state="mamba"),
    "kimi-k3": KDA(rolls_back=True, graph="rough"),
    "kimi-linear": KDA(graph="rough", wants_equal_slots=True),
    "laguna": Family(window=WindowRule(4, dense_first=True, needs_key=True)),
    "lfm2": SHORT_CONVOLUTION(window=WindowRule(0, needs_key=True)),
    "lfm2moe": SHORT_CONVOLUTION(is_uneven=False),
    "llama-embed": Family(attends_in_batch=True, gives_vectors=True),
    "llama4": Family(
        window=WindowRule(4, default_window=8192, zero_is_dense=True, fixed_window=8192),
        is_uneven=True,
    ),
    "mamba": Family(recurrent="all", state="mamba"),
    "mamba2": Family(recurrent="all", state="mamba2"),
    "mellum": Family(window=WindowRule(4, needs_key=True), is_uneven=True),
    "minicpm3": Family(graph="unusual"),
    "minimax-01": Family(
        recurrent="by interval",
        interval=8,
        state="linear attention",
        graph="rough",
        wants_equal_slots=True,
    ),
    "minimax-m3": Family(indexer="blocks"),
    "nanbeige": Family(graph="unusual", loops="named"),
    "olmo2": Family(window=WindowRule(4, needs_key=True)),
    "plamo2": Family(recurrent="without heads", state="mamba2"),
    "plamo3": Family(window=WindowRule(8, needs_key=True)),
    "qwen3next": DELTA_NET(),
    "qwen4exp": DELTA_NET(
        rolls_back=True,
        indexer="pools",
        indexer_layers="all",
        has_streams=True,
        hashes_ngrams=True,
    ),
    "smallthinker": Family(
        window=WindowRule(4, dense_first=True, needs_key=True, fixed_window=4096)
    ),
    "step35": Family(window=WindowRule(None), graph="unusual"),
    "t5": Family(has_position_bias=True),
    "t5encoder": Family(attends_in_batch=True, has_position_bias=True, gives_vectors=True),
}
"""By the name in model files."""


def family_of(name: str) -> Family:
    """The row of an architecture; uncertain defaults for an unknown one."""
    return FAMILIES.get(name, UNKNOWN)
