"""Sizes of published models that kvchat's catalogue lacks, for headers made from them."""

from collections.abc import Iterable

from engine.model.gguf import Value

PUBLISHED = """
llama-2-70b       llama      8192 80  64   8 28672  32000   4096
yi-34b            llama      7168 60  56   8 20480  64000   4096
yi-6b             llama      4096 32  32   4 11008  64000   4096
solar-10.7b       llama      4096 48  32   8 14336  32000   4096
deepseek-llm-67b  llama      8192 95  64   8 22016 102400   4096
open-llama-3b     llama      3200 26  32  32  8640  32000   2048
granite-8b-code   llama      4096 36  32   8 14336  49152   4096
qwen1.5-110b      qwen2      8192 80  64   8 49152 152064  32768
qwen1.5-0.5b      qwen2      1024 24  16  16  2816 151936  32768
qwen2-57b-a14b    qwen2moe   3584 28  28   4 18944 151936  32768
falcon-40b        falcon     8192 60 128   8 32768  65024   2048
falcon-180b       falcon    14848 80 232   8 59392  65024   2048
mpt-30b           mpt        7168 48  64  64 28672  50432   8192
bloom-176b        bloom     14336 70 112 112 57344 250880   2048
gpt-neox-20b      gptneox    6144 44  64  64 24576  50432   2048
pythia-12b        gptneox    5120 36  40  40 20480  50688   2048
gpt2-xl           gpt2       1600 48  25  25  6400  50257   1024
starcoder-15b     starcoder  6144 40  48   1 24576  49152   8192
stablelm-2-12b    stablelm   5120 40  32   8 13824 100352   4096
internlm2-20b     internlm2  6144 48  48   8 16384  92544  32768
baichuan2-13b     baichuan   5120 40  40  40 13696 125696   4096
olmo-2-13b        olmo2      5120 40  40  40 13824 100352   4096
chatglm3-6b       chatglm    4096 28  32   2 13696  65024   8192
nemotron-4-15b    nemotron   6144 32  48   8 24576 256000   4096
command-a-111b    cohere2   12288 64  96   8 36864 256000 131072
phi-1.5           phi2       2048 24  32  32  8192  51200   2048
phi-3-medium      phi3       5120 40  40  10 17920  32064   4096
qwen2.5-vl-72b    qwen2vl    8192 80  64   8 29568 152064 131072
aya-23-8b         command-r  4096 32  32   8 14336 256000   8192
"""
"""Name, architecture, then width, layers, heads, key-value
heads, feed-forward width, vocabulary and trained context of their configurations."""


def published_models() -> dict[tuple[str, str], dict[str, Value]]:
    """The keys of published models by name and architecture."""
    lines = map(str.split, PUBLISHED.strip().splitlines())
    return {(name, kind): _published(map(int, sizes)) for name, kind, *sizes in lines}


def _published(sizes: Iterable[int]) -> dict[str, Value]:
    width, n_layers, n_heads, n_kv_heads, n_ff, n_vocab, n_ctx = sizes
    return {
        "embedding_length": width,
        "block_count": n_layers,
        "attention.head_count": n_heads,
        "attention.head_count_kv": n_kv_heads,
        "rope.dimension_count": width // n_heads,
        "feed_forward_length": n_ff,
        "vocab_size": n_vocab,
        "context_length": n_ctx,
    }
