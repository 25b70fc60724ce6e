"""vLLM's launch: `vllm serve` for each machine, with the cache's size and a second tier.

Checked with the sources of 0.32.0: `vllm/config` and `vllm/engine/arg_utils.py`. It reads GGUF by a
package of its own since 0.26 (`vllm-gguf-plugin`).
"""

import json
from collections.abc import Iterator

from engine.configuration import ControllerName, PredictorName
from engine.presets.programs.base import (
    Exported,
    ExportRequest,
    Format,
    named_file,
    slug,
    with_absolute_paths,
    writable,
)
from engine.presets.programs.paged_server import (
    HALF_BYTES,
    Spread,
    launch,
    lost,
    n_ctx_of_chat,
    named_adapters,
    number_bytes,
    sizes_text,
    spread_of,
    tier_gib,
    tokenizer_of,
    utilization,
)
from engine.presets.programs.remarks import one_length

PROGRAM = "vLLM"
PAGE_TOKENS = 16
"""`CacheConfig.DEFAULT_BLOCK_SIZE`."""
MASTER_PORT = 29501


def render(request: ExportRequest) -> Exported:
    """A script of the first machine; those of the others come beside it.

    Raises:
        ExportError: a path that cannot be written.
    """
    placed = with_absolute_paths(request)
    spread = spread_of(placed, PAGE_TOKENS)
    remarks = tuple(_remarks(placed, spread))
    commands = [_words(placed, spread, rank) for rank in range(_n_scripts(spread))]
    return launch(request, "vLLM 0.32", remarks, spread, commands)


def _n_scripts(spread: Spread) -> int:
    return len(spread.nodes) if spread.is_even else 1


def _words(request: ExportRequest, spread: Spread, rank: int) -> list[str]:
    configuration = request.configuration
    tokenizer = tokenizer_of(request.model)
    words = ["vllm", "serve", writable(str(configuration.model_path))]
    words += [] if tokenizer is None else ["--tokenizer", tokenizer]
    words += ["--served-model-name", slug(request.name)]
    words += ["--max-model-len", str(n_ctx_of_chat(configuration))]
    words += ["--max-num-seqs", str(configuration.n_slots)]
    words += ["--gpu-memory-utilization", f"{utilization(request):g}"]
    if number_bytes(configuration) < HALF_BYTES:
        words += ["--kv-cache-dtype", "fp8"]
    if spread.n_tensor > 1:
        words += ["--tensor-parallel-size", str(spread.n_tensor)]
    if spread.n_pipeline > 1:
        words += ["--pipeline-parallel-size", str(spread.n_pipeline)]
    words += list(_nodes(spread, rank))
    if (drafts := _drafts(request)) is not None:
        words += ["--speculative-config", json.dumps(drafts)]
    if configuration.adapters:
        words += ["--enable-lora", "--lora-modules", *named_adapters(configuration)]
    words.append("--enable-prompt-tokens-details")  # without it replies do not tell what was reused
    return [*words, "--host", writable(request.host), "--port", str(request.port)]


def _nodes(spread: Spread, rank: int) -> Iterator[str]:
    if len(spread.nodes) < 2:
        return
    if not spread.is_even:
        yield from ("--distributed-executor-backend", "ray")
        return
    yield from ("--nnodes", str(len(spread.nodes)), "--node-rank", str(rank))
    yield from ("--master-addr", spread.nodes[0].host, "--master-port", str(MASTER_PORT))
    if rank:
        yield "--headless"


def _drafts(request: ExportRequest) -> dict[str, object] | None:
    """The speculative config; None drafts nothing."""
    configuration, speculation = request.configuration, request.configuration.speculation
    if configuration.n_mtp_draft:
        return {"method": "mtp", "num_speculative_tokens": configuration.n_mtp_draft}
    if speculation.predictor is PredictorName.DRAFT and configuration.draft is not None:
        return {
            "method": "draft_model",
            "model": writable(str(configuration.draft.model_path)),
            "num_speculative_tokens": speculation.n_draft,
        }
    if not speculation.drafts_from_text:
        return None
    is_fixed = speculation.controller is ControllerName.FIXED
    return {
        "method": "ngram",
        "num_speculative_tokens": speculation.n_draft if is_fixed else speculation.n_draft_max,
        "prompt_lookup_min": speculation.lookup_pattern_min,
        "prompt_lookup_max": max(speculation.lookup_pattern_max, speculation.lookup_pattern_min),
    }


def _remarks(request: ExportRequest, spread: Spread) -> Iterator[str]:
    yield "GGUF needs a package beside it: pip install vllm vllm-gguf-plugin"
    yield from sizes_text(request, spread, "blocks")
    yield from lost(request, spread, PROGRAM)
    speculation = request.configuration.speculation
    if speculation.predictor in (PredictorName.SUFFIX, PredictorName.COMBINED):
        yield f"the predictor is {speculation.predictor}: vLLM gets its look-up (ngram) instead"
    if speculation.predictor is PredictorName.CUSTOM:
        yield f"the predictor {speculation.predictor_title} is a plugin of kvchat's: no drafts"
    yield from one_length(request.configuration, PROGRAM)
    if not spread.is_even:
        counts = ", ".join(f"{node.host} {len(node.gpus)}" for node in spread.nodes)
        yield (
            f"the machines have different numbers of GPUs ({counts}): start Ray on them first, "
            f"`ray start --head` on {spread.nodes[0].host} and "
            f"`ray start --address={spread.nodes[0].host}:6379` on the others"
        )
    if tier := tier_gib(request):
        chats = _chats(tier, request, spread)
        yield (
            f"a second tier of the cache in main memory{chats}: add --kv-offloading-size {tier} "
            f"--kv-offloading-backend native, or lmcache behind pip install lmcache"
        )


def _chats(tier: int, request: ExportRequest, spread: Spread) -> str:
    n_ctx = n_ctx_of_chat(request.configuration)
    nbytes = spread.cache_bytes(n_ctx) * spread.n_gpus
    return f" holds {tier * 2**30 // nbytes:,} chats of {n_ctx:,} tokens more" if nbytes else ""


FORMAT = Format("vllm", "vLLM, on one machine or several", named_file(".vllm.sh"), render)
