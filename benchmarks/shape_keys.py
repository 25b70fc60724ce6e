"""Draws the keys of made-up models: sizes that such models have, and what an architecture needs.

Nothing here comes from kvchat's catalogue or layouts. Which keys stay is for llama.cpp's loader to
list: those that it does not ask for are dropped by `shapes.py`.
"""

from random import Random
from typing import TypeVar

from published_models import published_models
from shape_specials import FIXED, SPECIAL

from engine.model.gguf import Value

Keys = dict[str, Value]
T = TypeVar("T")

SIZES = {
    "toy": ((128, 256, 384, 512), (2, 4, 6), (1000, 4096, 10240)),
    "small": ((576, 768, 1024, 1536, 2048), (8, 12, 22, 24, 30), (32000, 49152, 65024)),
    "medium": ((2304, 2560, 3072, 4096), (20, 28, 32, 36), (50257, 65024, 100352, 152064)),
    "large": ((5120, 6144, 8192), (40, 48, 60), (32000, 128256, 202048, 262144)),
}
"""Width, layers and vocabulary; the widths are those of published models."""

KINDS = {
    "experts": "llama4 cohere2moe grok qwen2moe qwen3moe qwen3next qwen3vlmoe qwen35moe qwen4exp "
    "phimoe dbrx olmoe arctic deepseek deepseek2 deepseek2-ocr deepseek32 dots3note deepseek4 "
    "glm4moe glm-dsa exaone-moe bailingmoe bailingmoe2 bailingmoe3 dots1 afmoe ernie4_5-moe "
    "hunyuan-moe hy_v3 hy_v4 gpt-oss lfm2moe smallthinker llada-moe grovemoe minimax-01 minimax-m2 "
    "minimax-m3 rnd1 mimo2 kimi-linear kimi-k3 glm5-next step35 mistral4 mellum laguna maple "
    "nemotron_h_moe granitemoe",
    "sometimes experts": "llama refact minicpm granite granitehybrid mistral3 llama-embed jamba "
    "gemma4",
    "latent cache": "deepseek2 deepseek32 glm-dsa dots3note kimi-linear bailingmoe3 kimi-k3 "
    "glm5-next hy_v4 mistral4",
    "0 key-value heads where recurrent": "plamo2 jamba nemotron_h nemotron_h_moe granitehybrid "
    "lfm2 lfm2moe kimi-linear bailingmoe3 kimi-k3 glm5-next",
    "no attention": "mamba mamba2 rwkv6 rwkv7",
    "list of windows": "cohere2moe mimo2 step35 spark2_5 granite_swa dots3note maple gemma4",
    "heads share the width": "gpt2 mpt bloom starcoder falcon codeshell refact jais phi2 gptneox "
    "qwen dbrx internlm2 orion plamo xverse baichuan stablelm nemotron bitnet chatglm command-r "
    "olmoe rwkv6qwen2 arwkv7 t5",
    "as many key-value heads": "olmoe t5",
    "heads of 64": "rwkv6qwen2 arwkv7",
    "often as many key-value heads": "gpt2 mpt bloom jais codeshell",
    "sometimes next-token layers": "deepseek2 glm4moe glm-dsa mimo2 qwen35 qwen35moe exaone-moe "
    "bailingmoe2 step35 hy_v3 bailingmoe3 mellum",
}
"""What llama.cpp's model files ask of architectures."""


def drawn_keys(architecture: str, size: str, random: Random) -> Keys:
    """Keys of a model without the architecture's prefix, the length of its vocabulary too."""
    return Drawing(architecture, size, random).keys


class Drawing:
    """A model that is being drawn: later parts depend on the sizes of earlier ones."""

    def __init__(self, architecture: str, size: str, random: Random) -> None:
        self.architecture = architecture
        self.random = random
        self.keys: Keys = {}
        if size in SIZES:
            self.keys |= self._sizes(size)
            self.keys |= self._heads() | self._common()
        else:
            self.keys |= published_models()[size, architecture]
            self.keys = self._common() | self.keys
        may_have = size in SIZES and self._is("sometimes experts")
        if self._is("experts") or (may_have and self.happens(0.4)):
            self.keys |= self._experts()
        self.keys |= self._state()
        if self._is("latent cache"):
            self.keys |= self._latent()
        if self._is("sometimes next-token layers") and self.happens(0.4):
            n_layers = self.number("block_count")
            self.keys |= {"nextn_predict_layers": 1, "block_count": n_layers + 1}
        self.keys |= FIXED.get(architecture, {})
        if special := SPECIAL.get(architecture):
            self.keys |= special(self)
        if self._is("0 key-value heads where recurrent"):
            self.keys |= self._heads_by_layer()
        if self._is("list of windows"):
            self.keys |= self._windows()

    def one_of(self, *values: T) -> T:
        """Draw one of some values."""
        return self.random.choice(values)

    def number(self, name: str) -> int:
        """A key that was drawn."""
        value = self.keys[name]
        assert isinstance(value, int)
        return value

    def _is(self, kind: str) -> bool:
        return self.architecture in KINDS[kind].split()

    def happens(self, share: float) -> bool:
        """Draw whether something is so."""
        return self.random.random() < share

    def _sizes(self, size: str) -> Keys:
        widths, depths, vocabularies = SIZES[size]
        return {
            "vocab_size": self.one_of(*vocabularies),
            "context_length": self.one_of(2048, 8192, 32768, 131072),
            "embedding_length": self.one_of(*widths),
            "block_count": self.one_of(*depths),
        }

    def _heads(self) -> Keys:
        """Draw heads: their size often divides the width, else it is a key."""
        if self._is("no attention"):
            return {"attention.head_count": 0}
        width = self.number("embedding_length")
        sizes = (64,) if self._is("heads of 64") else (32, 64, 80, 96, 128)
        head_dim = self.random.choice([size for size in sizes if width % size == 0])
        n_heads = width // head_dim
        found: Keys = {}
        if not self._is("heads share the width") and self.happens(0.5):
            head_dim = self.one_of(64, 80, 96, 128, 128, 192, 256)
            n_heads = self.one_of(n_heads, max(width // head_dim, 1), 2 * max(width // 256, 1))
            found |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
        groups = [n for n in (1, 2, 3, 4, 6, 8, 12, 16) if n_heads % n == 0]
        n_kv_heads = n_heads // self.random.choice(groups)
        if self._is("often as many key-value heads"):
            n_kv_heads = self.one_of(n_heads, n_heads, n_kv_heads)
        if self._is("as many key-value heads"):
            n_kv_heads = n_heads
        return found | {
            "attention.head_count": n_heads,
            "attention.head_count_kv": n_kv_heads,
            "rope.dimension_count": head_dim,
        }

    def _common(self) -> Keys:
        """Draw what most architectures have: feed-forward width, windows, ranks, scales."""
        width, n_layers = self.number("embedding_length"), self.number("block_count")
        window = self.one_of(128, 512, 1024, 4096)
        return {
            "feed_forward_length": round(width * self.one_of(2, 8 / 3, 3.5, 4) / 64) * 64,
            "leading_dense_block_count": self.one_of(0, 1, 2),
            "attention.sliding_window": window,
            "attention.sliding_window_pattern": self.one_of(2, 4, 6),
            "full_attention_interval": self.one_of(2, 4),
            "attention.layer_norm_epsilon": 1e-5,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.group_norm_epsilon": 1e-5,
            "attention.group_norm_groups": 8,
            "attention.max_alibi_bias": 8.0,
            "attention.clamp_kqv": 8.0,
            "attention.relative_buckets_count": 32,
            "attention.q_lora_rank": self.one_of(512, 768, 1536),
            "attention.kv_lora_rank": self.one_of(256, 512),
            "use_parallel_residual": self.happens(0.5),
            "logit_scale": 1.0,
            "residual_scale": 1.0,
            "embedding_scale": 1.0,
            "rope.freq_base_swa": 10000.0,
            "rope.dimension_sections": (16, 24, 24, 0),
            "time_mix_extra_dim": self.one_of(32, 64),
            "time_decay_extra_dim": self.one_of(64, 128),
            "wkv.head_size": 64,
            "attention.decay_lora_rank": self.one_of(64, 96),
            "attention.iclr_lora_rank": self.one_of(64, 96),
            "attention.value_residual_mix_lora_rank": self.one_of(32, 64),
            "attention.gate_lora_rank": self.one_of(128, 256),
            "shortconv.l_cache": self.one_of(3, 4),
            "attn_res.block_size": 12,
            "activation.situ_beta": 4.0,
            "activation.situ_linear_beta": 25.0,
            "swiglu_clamp_exp": (7.0,) * n_layers,
            "xielu.alpha_n": (0.8,) * n_layers,
            "xielu.alpha_p": (0.8,) * n_layers,
            "xielu.beta": (0.5,) * n_layers,
            "xielu.eps": (1e-6,) * n_layers,
            "moe_every_n_layers": self.one_of(1, 2),
            "interleave_moe_layer_step": self.one_of(1, 2),
            "attention.indexer.head_count": self.one_of(8, 16, 32, 64),
            "attention.indexer.key_length": 128,
            "attention.indexer.top_k": self.one_of(256, 1024, 2048),
            "attention.indexer.block_size": self.one_of(64, 128),
            "attention.indexer.local_blocks": self.one_of(1, 2),
            "attention.indexer.kpool": self.one_of(4, 8),
            "attention.indexer.kpool_select_tail": True,
            "attention.indexer.types": tuple(int(i % 2 == 0) for i in range(n_layers)),
            "hyper_connection.count": 4,
            "hyper_connection.sinkhorn_iterations": 20,
            "hyper_connection.epsilon": 1e-6,
            "hyper_connection.magnitude": 2.0,
            "hyper_connection.low_rank": self.one_of(8, 32),
        }

    def _experts(self) -> Keys:
        width = self.number("embedding_length")
        n_experts = self.one_of(4, 8, 16, 32, 64, 128)
        n_used = self.random.choice([n for n in (1, 2, 4, 6, 8) if n <= n_experts // 2])
        n_ff = max(round(width * self.one_of(0.25, 0.5, 1) / 64), 1) * 64
        found: Keys = {
            "expert_count": n_experts,
            "expert_used_count": n_used,
            "expert_feed_forward_length": n_ff,
            "expert_shared_feed_forward_length": n_ff * self.one_of(1, 2),
            "expert_chunk_feed_forward_length": n_ff // 2,
            "expert_shared_count": self.one_of(1, 1, 2),
            "expert_gating_func": 2,
            "expert_weights_scale": 1.0,
            "expert_weights_norm": True,
            "expert_latent_length": n_ff,
            "expert_group_scale": 0.05,
            "experts_per_group": 2,
        }
        if self.happens(0.3) and n_experts >= 16:
            found |= {"expert_group_count": 4, "expert_group_used_count": 2}
        return found

    def _state(self) -> Keys:
        """Draw recurrent sizes: inner width, heads that divide it, groups that divide those."""
        inner = 2 * self.number("embedding_length")
        head_dim = self.random.choice([d for d in (32, 64, 128) if inner % d == 0])
        n_heads = inner // head_dim
        return {
            "ssm.inner_size": inner,
            "ssm.conv_kernel": 4,
            "ssm.state_size": self.one_of(16, 64, 128),
            "ssm.time_step_rank": n_heads,
            "ssm.group_count": self.random.choice([n for n in (1, 2, 4, 8) if n_heads % n == 0]),
            "ssm.dt_b_c_rms": self.happens(0.3),
            "kda.head_dim": 128,
            "kda.safe_gate": True,
            "kda.gate_lower_bound": -5.0,
        }

    def _latent(self) -> Keys:
        """Draw a latent cache: one head of rank and rotated part, unpacked into smaller heads."""
        rank, rotated = self.one_of(256, 512, 512), 0 if self.architecture == "glm5-next" else 64
        plain, value = self.one_of((128, 128), (192, 256), (64, 128))
        return {
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": rank,
            "attention.key_length": rank + rotated,
            "attention.value_length": rank,
            "attention.key_length_mla": plain + rotated,
            "attention.value_length_mla": value,
            "rope.dimension_count": rotated,
            "attention.indexer.head_count": self.one_of(16, 32, 64),
        }

    def _heads_by_layer(self) -> Keys:
        """Every so-manieth layer has attention; Nemotron's others take turns with feed-forward."""
        n_layers, step = self.number("block_count"), self.one_of(2, 3, 4)
        has_attention = [i % step == step - 1 for i in range(n_layers)]
        n_kv = self.number("attention.head_count_kv")
        found: Keys = {"attention.head_count_kv": tuple(n_kv * has for has in has_attention)}
        if self.architecture.startswith("nemotron_h"):
            n_ff = self.number("feed_forward_length")
            found["feed_forward_length"] = tuple(
                n_ff * (i % 2 == 1 and not has) for i, has in enumerate(has_attention)
            )
        return found

    def _windows(self) -> Keys:
        """Every so-manieth layer sees all tokens, by an indexer where there are such."""
        step = self.one_of(2, 4, 6)
        has_window = [i % step != step - 1 for i in range(self.number("block_count"))]
        return {
            "attention.sliding_window_pattern": tuple(map(int, has_window)),
            "attention.indexer.types": tuple(int(not has) for has in has_window),
        }
