"""What a step reads of a model's weights: nearly all of its time where one token is decoded."""

import re
from dataclasses import dataclass

from engine.model.gguf import GgufFile

LAYER = re.compile(r"^blk\.(\d+)\.")
EXPERT = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")
"""Tensors of which a token reads its own experts' part (llama.cpp 0c1e57098, common/common.h)."""


@dataclass(frozen=True, slots=True)
class TokenReads:
    """Bytes of weights by how many tokens they are read for."""

    dense_bytes: int
    """Read once a batch, however many rows it has."""
    expert_bytes: int = 0
    """All experts together."""
    expert_share: float = 1.0
    """Share of the experts that one token uses."""

    def nbytes(self, n_rows: int = 1) -> int:
        """Give the bytes that a batch reads; rows of unlike text use experts independently."""
        share = 1.0 - (1.0 - self.expert_share) ** n_rows
        return self.dense_bytes + round(share * self.expert_bytes)


def token_reads(file: GgufFile) -> TokenReads:
    """Sum the tensors that a step reads, a next-token head left out; of the embeddings it is a row.

    The cache is left out too: it grows with the text.
    """
    keys = file.architecture
    n_head = file.integer(f"{keys}.nextn_predict_layers") or 0
    n_trunk = (file.integer(f"{keys}.block_count") or 0) - n_head
    dense = experts = embeddings = 0
    has_output = False
    for tensor in file.tensors:
        layer = LAYER.match(tensor.name)
        if layer and n_head and int(layer[1]) >= n_trunk:
            continue
        if EXPERT.search(tensor.name):
            experts += tensor.nbytes
        elif tensor.name == "token_embd.weight":
            embeddings = tensor.nbytes
        else:
            has_output = has_output or tensor.name == "output.weight"
            dense += tensor.nbytes
    tied = 0 if has_output else embeddings
    return TokenReads(dense + tied, experts, _expert_share(file))


def _expert_share(file: GgufFile) -> float:
    n_experts = file.integer(f"{file.architecture}.expert_count")
    used = file.values.get(f"{file.architecture}.expert_used_count")
    n_used = max(_integers(used), default=0)
    return min(max(n_used / n_experts, 0.0), 1.0) if n_experts and n_used else 1.0


def _integers(value: object) -> list[int]:
    found = value if isinstance(value, tuple) else (value,)
    return [each for each in found if isinstance(each, int) and not isinstance(each, bool)]
