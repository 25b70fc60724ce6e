"""The flags of llama-server that a preset has a place for, under all the names they had.

Names are those of llama.cpp b11434 (`common/arg.cpp`), of the builds from February to April 2026,
and of ik_llama.cpp 8337e4c (`common/common.cpp`).
"""

from dataclasses import dataclass
from typing import Literal

Arity = Literal["value", "on", "off", "maybe"]
"""Whether a flag takes a value, is a switch on or off, or takes a value in newer builds only."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag under one of its names."""

    key: str
    """What it sets, one word for all names."""
    arity: Arity


def _named(key: str, arity: Arity, *names: str) -> dict[str, Flag]:
    return {name: Flag(key, arity) for name in names}


FLAGS: dict[str, Flag] = {
    **_named("model", "value", "-m", "--model"),
    **_named("n_ctx", "value", "-c", "--ctx-size"),
    **_named("n_batch", "value", "-b", "--batch-size"),
    **_named("n_ubatch", "value", "-ub", "--ubatch-size"),
    **_named("n_slots", "value", "-np", "--parallel"),
    **_named("kv_unified", "on", "-kvu", "--kv-unified"),
    **_named("kv_unified", "off", "-no-kvu", "--no-kv-unified"),
    **_named("type_k", "value", "-ctk", "--cache-type-k"),
    **_named("type_v", "value", "-ctv", "--cache-type-v"),
    **_named("flash_attention", "maybe", "-fa", "--flash-attn"),
    **_named("flash_attention", "off", "-no-fa", "--no-flash-attn"),
    **_named("swa_full", "on", "--swa-full"),
    **_named("n_threads", "value", "-t", "--threads"),
    **_named("n_gpu_layers", "value", "-ngl", "--gpu-layers", "--n-gpu-layers"),
    **_named("fit", "maybe", "-fit", "--fit"),
    **_named("split_mode", "value", "-sm", "--split-mode"),
    **_named("main_gpu", "value", "-mg", "--main-gpu"),
    **_named("tensor_split", "value", "-ts", "--tensor-split"),
    **_named("tensor_overrides", "value", "-ot", "--override-tensor"),
    **_named("cpu_moe", "on", "-cmoe", "--cpu-moe"),
    **_named("n_cpu_moe", "value", "-ncmoe", "--n-cpu-moe"),
    **_named("offload_kqv", "on", "-kvo", "--kv-offload"),
    **_named("offload_kqv", "off", "-nkvo", "--no-kv-offload"),
    **_named("use_extra_buffers", "on", "--repack"),
    **_named("use_extra_buffers", "off", "-nr", "--no-repack"),
    **_named("mmproj", "value", "-mm", "--mmproj"),
    **_named("mmproj_offload", "on", "--mmproj-offload"),
    **_named("mmproj_offload", "off", "--no-mmproj-offload"),
    **_named("lora", "value", "--lora"),
    **_named("temperature", "value", "--temp", "--temperature"),
    **_named("top_k", "value", "--top-k"),
    **_named("top_p", "value", "--top-p"),
    **_named("min_p", "value", "--min-p"),
    **_named("repetition_penalty", "value", "--repeat-penalty"),
    **_named("repetition_window", "value", "--repeat-last-n"),
    **_named("spec_type", "value", "--spec-type"),
    **_named("draft_model", "value", "-md", "--model-draft", "--spec-draft-model"),
    **_named(
        "draft_max", "value", "--spec-draft-n-max", "--draft", "--draft-n", "--draft-max"
    ),
    **_named("draft_min", "value", "--spec-draft-n-min", "--draft-min", "--draft-n-min"),
    **_named("draft_p_min", "value", "--spec-draft-p-min", "--draft-p-min"),
    **_named(
        "draft_layers", "value",
        "--spec-draft-ngl", "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft",
    ),
    **_named("draft_type_k", "value", "--spec-draft-type-k", "-ctkd", "--cache-type-k-draft"),
    **_named("draft_type_v", "value", "--spec-draft-type-v", "-ctvd", "--cache-type-v-draft"),
    **_named("lookup_n", "value", "--spec-ngram-simple-size-n", "--spec-ngram-size-n"),
    **_named("lookup_m", "value", "--spec-ngram-simple-size-m", "--spec-ngram-size-m"),
}  # fmt: skip

LEGACY_DRAFT = frozenset({"--draft", "--draft-n", "--draft-max", "--draft-min", "--draft-n-min"})
"""Flags of builds in which a draft model drafted without `--spec-type`."""

VARIABLES: dict[str, str] = {
    "LLAMA_ARG_MODEL": "--model",
    "LLAMA_ARG_CTX_SIZE": "--ctx-size",
    "LLAMA_ARG_BATCH": "--batch-size",
    "LLAMA_ARG_UBATCH": "--ubatch-size",
    "LLAMA_ARG_N_PARALLEL": "--parallel",
    "LLAMA_ARG_KV_UNIFIED": "--kv-unified",
    "LLAMA_ARG_CACHE_TYPE_K": "--cache-type-k",
    "LLAMA_ARG_CACHE_TYPE_V": "--cache-type-v",
    "LLAMA_ARG_FLASH_ATTN": "--flash-attn",
    "LLAMA_ARG_SWA_FULL": "--swa-full",
    "LLAMA_ARG_THREADS": "--threads",
    "LLAMA_ARG_N_GPU_LAYERS": "--n-gpu-layers",
    "LLAMA_ARG_FIT": "--fit",
    "LLAMA_ARG_SPLIT_MODE": "--split-mode",
    "LLAMA_ARG_MAIN_GPU": "--main-gpu",
    "LLAMA_ARG_TENSOR_SPLIT": "--tensor-split",
    "LLAMA_ARG_OVERRIDE_TENSOR": "--override-tensor",
    "LLAMA_ARG_CPU_MOE": "--cpu-moe",
    "LLAMA_ARG_N_CPU_MOE": "--n-cpu-moe",
    "LLAMA_ARG_KV_OFFLOAD": "--kv-offload",
    "LLAMA_ARG_NO_KV_OFFLOAD": "--no-kv-offload",
    "LLAMA_ARG_REPACK": "--repack",
    "LLAMA_ARG_NO_REPACK": "--no-repack",
    "LLAMA_ARG_MMPROJ": "--mmproj",
    "LLAMA_ARG_MMPROJ_OFFLOAD": "--mmproj-offload",
    "LLAMA_ARG_NO_MMPROJ_OFFLOAD": "--no-mmproj-offload",
    "LLAMA_ARG_TEMPERATURE": "--temp",
    "LLAMA_ARG_TOP_K": "--top-k",
    "LLAMA_ARG_TOP_P": "--top-p",
    "LLAMA_ARG_MIN_P": "--min-p",
    "LLAMA_ARG_REPEAT_PENALTY": "--repeat-penalty",
    "LLAMA_ARG_SPEC_TYPE": "--spec-type",
    "LLAMA_ARG_SPEC_DRAFT_MODEL": "--model-draft",
    "LLAMA_ARG_MODEL_DRAFT": "--model-draft",
    "LLAMA_ARG_SPEC_DRAFT_N_MAX": "--spec-draft-n-max",
    "LLAMA_ARG_DRAFT_MAX": "--draft-max",
    "LLAMA_ARG_SPEC_DRAFT_N_MIN": "--spec-draft-n-min",
    "LLAMA_ARG_DRAFT_MIN": "--draft-min",
    "LLAMA_ARG_SPEC_DRAFT_P_MIN": "--spec-draft-p-min",
    "LLAMA_ARG_DRAFT_P_MIN": "--draft-p-min",
    "LLAMA_ARG_N_GPU_LAYERS_DRAFT": "--spec-draft-ngl",
    "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K": "--spec-draft-type-k",
    "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V": "--spec-draft-type-v",
}
"""Environment variables of llama-server, which the models preset takes as keys too."""
