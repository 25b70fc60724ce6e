"""The metadata of a model by layer, and the sizes that its tensors are made of."""

from collections.abc import Mapping

from engine.model.gguf import Value


class Keys:
    """Values of an architecture's keys, without its prefix (`attention.head_count`).

    `traits` names what no key says but the tensors do: `tied` (no output matrix), `rope_freqs`,
    `qkv_bias` and the like, as each family documents.
    """

    def __init__(
        self, architecture: str, values: Mapping[str, Value], n_vocab: int, traits: frozenset[str]
    ) -> None:
        self.architecture = architecture
        self.n_vocab = n_vocab
        self.traits = traits
        self._values = values
        self.n_layers = self.integer("block_count")
        """Blocks of the file, those of a next-token head included."""
        self.n_trunk_layers = self.n_layers - self.integer("nextn_predict_layers")

    def integer(self, key: str, layer: int = 0, default: int = 0) -> int:
        """Give a value for a layer, be it one for all or one for each."""
        value = self._values.get(key, default)
        if isinstance(value, tuple):
            value = value[layer] if layer < len(value) else default
        return int(value)

    def sizes(self, layer: int) -> dict[str, int]:
        """Give what rows call `d`, `q`, `k`, `v`, `o`, `ff` and so on, for one layer."""
        hidden = self.integer("embedding_length")
        heads = self.integer("attention.head_count", layer)
        kv_heads = self.integer("attention.head_count_kv", layer, heads)
        head_dim = hidden // max(1, self.integer("attention.head_count", 0, 1))
        k_dim = self.integer("attention.key_length", layer, head_dim)
        v_dim = self.integer("attention.value_length", layer, head_dim)
        rot = self.integer("rope.dimension_count", layer, k_dim)
        ff = self.integer("feed_forward_length", layer)
        expert_ff = self.integer("expert_feed_forward_length", layer, ff)
        n_shared = self.integer("expert_shared_count", layer)
        return {
            "d": hidden,
            "vocab": self.n_vocab,
            "heads": heads,
            "kv_heads": kv_heads,
            "k_dim": k_dim,
            "v_dim": v_dim,
            "q": heads * k_dim,
            "k": kv_heads * k_dim,
            "v": kv_heads * v_dim,
            "o": heads * v_dim,
            "rot": rot,
            "half_rot": rot // 2,
            "ff": ff,
            "experts": self.integer("expert_count", layer),
            "expert_ff": expert_ff,
            "shared_ff": self.integer(
                "expert_shared_feed_forward_length", layer, expert_ff * n_shared
            ),
        }
