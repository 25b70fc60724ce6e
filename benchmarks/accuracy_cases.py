"""The configurations that formulas and llama.cpp are compared on."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.configuration import (
    Configuration,
    FlashAttention,
    KVTypeName,
    PredictorName,
    SpeculationSettings,
)
from engine.memory.estimate import Target

NO_DRAFT = SpeculationSettings(predictor=PredictorName.OFF)
SMALLEST_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration, and the program that it is for."""

    name: str
    target: Target
    n_ctx: int
    type_k: KVTypeName = "f16"
    type_v: KVTypeName = "f16"
    n_ubatch: int = 512
    flash_attention: FlashAttention = "on"
    n_slots: int = 1
    kv_unified: bool = False
    swa_full: bool = False
    is_drafting: bool = False

    def configuration(self, path: Path, n_ctx_train: int) -> Configuration:
        """Give the case for a model: its context ends where the model's training does."""
        return Configuration(
            model_path=path,
            n_ctx=min(self.n_ctx, max(n_ctx_train, SMALLEST_CONTEXT)),
            n_batch=max(2048, self.n_ubatch),
            n_ubatch=self.n_ubatch,
            type_k=self.type_k,
            type_v=self.type_v,
            flash_attention=self.flash_attention,
            n_slots=self.n_slots,
            kv_unified=self.kv_unified,
            swa_full=self.swa_full,
            speculation=SpeculationSettings() if self.is_drafting else NO_DRAFT,
        )


def cases() -> Iterator[Case]:
    """Give every case: contexts, cache types, micro-batches, attention, slots, both programs."""
    server: Target = "llama-server"
    yield Case("4k", "kvchat", 4096)
    yield Case("4k ub128 off", "kvchat", 4096, n_ubatch=128, flash_attention="off")
    yield Case("4k auto 4u", server, 4096, flash_attention="auto", n_slots=4, kv_unified=True)
    yield Case("5000 3 slots", server, 5000, n_slots=3, type_k="q8_0", type_v="q8_0")
    yield Case("8k q5_1/bf16 ub128", "kvchat", 8192, "q5_1", "bf16", n_ubatch=128)
    yield Case("8k q4_1/f16 off", server, 8192, "q4_1", "f16", flash_attention="off")
    yield Case("32k", server, 32768)
    yield Case("32k q8_0", "kvchat", 32768, "q8_0", "q8_0")
    yield Case("32k off", "kvchat", 32768, flash_attention="off")
    yield Case("32k off ub2048 4u", server, 32768, n_ubatch=2048, flash_attention="off",
               n_slots=4, kv_unified=True)  # fmt: skip
    yield Case("32k q8_0/q4_0 ub2048 4 slots", server, 32768, "q8_0", "q4_0", n_ubatch=2048,
               n_slots=4, is_drafting=True)  # fmt: skip
    yield Case("32k iq4_nl auto", "kvchat", 32768, "iq4_nl", "iq4_nl", flash_attention="auto")
    yield Case("128k", "kvchat", 131072)
    yield Case("128k q4_0", server, 131072, "q4_0", "q4_0")
    yield Case("128k ub2048", "kvchat", 131072, n_ubatch=2048)
    yield Case("128k swa-full", server, 131072, swa_full=True)
    yield Case("128k q8_0 ub2048 4u", server, 131072, "q8_0", "q8_0", n_ubatch=2048, n_slots=4,
               kv_unified=True, is_drafting=True)  # fmt: skip
