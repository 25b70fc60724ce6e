"""The configurations that formulas and llama.cpp are compared on."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from engine.configuration import (
    Configuration,
    FlashAttention,
    KVTypeName,
    PredictorName,
    SpeculationSettings,
    SplitMode,
    TensorOverride,
)
from engine.memory.terms import Target

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
    n_gpus: int = 0
    """Stand-in GPUs that llama.cpp is shown."""
    layers: float = 1.0
    """Part of the layers that lie on GPUs; 1 takes the output layer along."""
    offload_kqv: bool = True
    split_mode: SplitMode = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    n_cpu_moe: int = 0
    overrides: tuple[TensorOverride, ...] = ()
    needs_experts: bool = False
    n_rollback: int = 0
    """Rows that each slot of a recurrent state keeps to take drafted tokens back."""

    def configuration(self, path: Path, n_ctx_train: int, n_layers: int) -> Configuration:
        """The case for a model: its context ends where the model's training does."""
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
            n_gpu_layers=-1 if self.layers == 1.0 else round(n_layers * self.layers),
            offload_kqv=self.offload_kqv,
            split_mode=self.split_mode,
            main_gpu=self.main_gpu,
            tensor_split=self.tensor_split,
            n_cpu_moe=self.n_cpu_moe,
            tensor_overrides=self.overrides,
            n_mtp_draft=self.n_rollback,
        )


def cpu_cases() -> Iterator[Case]:
    """Contexts, cache types, ubatch sizes, attention, slots, both programs."""
    server: Target = "llama-server"
    yield Case("4k", "kvchat", 4096)
    yield Case("4k ub128 off", "kvchat", 4096, n_ubatch=128, flash_attention="off")
    yield Case("4k auto 4u", server, 4096, flash_attention="auto", n_slots=4, kv_unified=True)
    yield Case("5000 3 slots", server, 5000, n_slots=3, type_k="q8_0", type_v="q8_0")
    yield Case("8k q5_1/bf16 ub128", "kvchat", 8192, "q5_1", "bf16", n_ubatch=128)
    yield Case("8k q4_1/f16 off", server, 8192, "q4_1", "f16", flash_attention="off")
    yield Case("8k 2 slots, 3 rows back", server, 8192, n_slots=2, n_rollback=3)
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


def gpu_cases() -> Iterator[Case]:
    """Placements on one and two GPUs, those of one placement in sequence."""
    server: Target = "llama-server"
    yield Case("GPU 4k", "kvchat", 4096, n_gpus=1)
    yield Case("GPU 32k q8_0", "kvchat", 32768, "q8_0", "q8_0", n_gpus=1)
    yield Case("GPU 32k off", "kvchat", 32768, flash_attention="off", n_gpus=1)
    yield Case("GPU 128k q4_0 ub2048 4u", server, 131072, "q4_0", "q4_0", n_ubatch=2048,
               n_slots=4, kv_unified=True, n_gpus=1)  # fmt: skip
    yield Case("GPU 32k cache on CPU", server, 32768, offload_kqv=False, n_gpus=1)
    yield Case("half GPU 32k", server, 32768, n_gpus=1, layers=0.5)
    yield Case("half GPU 32k q8_0 cache on CPU", "kvchat", 32768, "q8_0", "q8_0", n_gpus=1,
               layers=0.5, offload_kqv=False)  # fmt: skip
    yield Case("GPU experts on CPU", server, 32768, n_gpus=1, n_cpu_moe=-1, needs_experts=True)
    yield Case("GPU 4 layers' experts on CPU", "kvchat", 8192, n_gpus=1, n_cpu_moe=4,
               needs_experts=True)  # fmt: skip
    yield Case("GPU ffn_down on CPU", "kvchat", 8192, n_gpus=1,
               overrides=(TensorOverride("ffn_down", "CPU"),))  # fmt: skip
    yield Case("2 GPUs 32k", server, 32768, n_gpus=2)
    yield Case("2 GPUs 32k q8_0 ub2048", "kvchat", 32768, "q8_0", "q8_0", n_ubatch=2048, n_gpus=2)
    yield Case("2 GPUs 3:1", "kvchat", 32768, n_gpus=2, tensor_split=(3.0, 1.0))
    yield Case("2 GPUs half", server, 32768, n_gpus=2, layers=0.5)
    yield Case("second GPU alone", "kvchat", 8192, n_gpus=2, split_mode="none", main_gpu=1)


KV_PAIRS: tuple[tuple[KVTypeName, KVTypeName], ...] = (
    ("f16", "f16"), ("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "q4_0"),
    ("bf16", "bf16"), ("f32", "f32"), ("q5_1", "bf16"), ("iq4_nl", "iq4_nl"), ("q4_1", "f16"),
    ("q5_0", "q5_0"),
)  # fmt: skip
CONTEXTS = (512, 2048, 4096, 5000, 8192, 16384, 32768, 65536, 131072)


def drawn_cases(seed: str, n_cpu: int, n_gpu: int) -> Iterator[Case]:
    """Draw configurations of a made-up model: on the CPU, then on one and two stand-in GPUs."""
    random = Random(seed)
    yield from (_drawn_case(random, 0) for _ in range(n_cpu))
    yield from (_drawn_case(random, number % 2 + 1) for number in range(n_gpu))


def _drawn_case(random: Random, n_gpus: int) -> Case:
    """Draw one configuration; names are what differs from the defaults."""
    n_ctx, n_ubatch = random.choice(CONTEXTS), random.choice((64, 256, 512, 512, 1024, 2048))
    type_k, type_v = random.choice(KV_PAIRS)
    flash: FlashAttention = random.choice(("on", "on", "auto", "off"))
    if flash == "off" and type_v not in ("f32", "f16", "bf16"):
        flash = "on"  # llama.cpp refuses quantised values without it
    n_slots = random.choice((1, 1, 2, 3, 4, 8, 16))
    target: Target = random.choice(("kvchat", "llama-server"))
    is_unified, swa_full = random.random() < 0.4, random.random() < 0.2
    layers = random.choice((1.0, 1.0, 0.5, 0.25)) if n_gpus else 1.0
    offload_kqv = not n_gpus or random.random() < 0.85
    split = random.choice(((), (), (3.0, 1.0))) if n_gpus == 2 else ()
    words = [
        f"{n_gpus} GPU" * bool(n_gpus), f"{layers:g} of layers" * (layers < 1), str(n_ctx),
        f"{type_k}/{type_v}", f"ub{n_ubatch}", flash, f"{n_slots} slots" * (n_slots > 1),
        "unified" * is_unified, "swa-full" * swa_full, "cache on CPU" * (not offload_kqv),
        "3:1" * bool(split),
    ]  # fmt: skip
    return Case(
        " ".join(filter(None, words)), target, n_ctx, type_k, type_v, n_ubatch, flash, n_slots,
        is_unified, swa_full, n_gpus=n_gpus, layers=layers, offload_kqv=offload_kqv,
        tensor_split=split,
    )  # fmt: skip
