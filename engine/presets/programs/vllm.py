"""vLLM's launch: `vllm serve` for each machine, with the cache's size and a second tier.

Checked with the sources of 0.32.0: `vllm/config` and `vllm/engine/arg_utils.py`. It reads GGUF by a
package of its own since 0.26 (`vllm-gguf-plugin`).
"""

import json
from collections.abc import Iterator

from engine.configuration import Configuration
from engine.presets.programs.base import ExportRequest, Format, named_file, writable
from engine.presets.programs.paged_server import (
    PagedServer,
    Spread,
    machines_text,
    n_ctx_of_chat,
    n_drafted,
    tier_gib,
)
from engine.presets.programs.remarks import Drafter

MASTER_PORT = 29501


def _nodes(spread: Spread, rank: int) -> Iterator[str]:
    if not spread.is_even:
        yield from ("--distributed-executor-backend", "ray")
        return
    yield from ("--nnodes", str(len(spread.nodes)), "--node-rank", str(rank))
    yield from ("--master-addr", spread.nodes[0].host, "--master-port", str(MASTER_PORT))
    if rank:
        yield "--headless"


def _drafts(configuration: Configuration, drafting: tuple[Drafter, ...]) -> Iterator[str]:
    config = _speculative_config(configuration, drafting)
    if config is not None:
        yield from ("--speculative-config", json.dumps(config))


def _speculative_config(
    configuration: Configuration, drafting: tuple[Drafter, ...]
) -> dict[str, object] | None:
    """What drafts; None drafts nothing."""
    speculation, draft = configuration.speculation, configuration.draft
    if "head" in drafting:
        return {"method": "mtp", "num_speculative_tokens": configuration.n_mtp_draft}
    if "draft" in drafting and draft is not None:
        return {
            "method": "draft_model",
            "model": writable(str(draft.model_path)),
            "num_speculative_tokens": speculation.n_draft,
        }
    if "lookup" not in drafting:
        return None
    return {
        "method": "ngram",
        "num_speculative_tokens": n_drafted(configuration, drafting),
        "prompt_lookup_min": speculation.lookup_pattern_min,
        "prompt_lookup_max": max(speculation.lookup_pattern_max, speculation.lookup_pattern_min),
    }


def _remarks(request: ExportRequest, spread: Spread) -> Iterator[str]:
    yield "GGUF needs a package beside it: pip install vllm vllm-gguf-plugin"
    if not spread.is_even:
        yield (
            f"the machines have different numbers of GPUs ({machines_text(spread)}): start Ray on "
            f"them first, `ray start --head` on {spread.nodes[0].host} and "
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


SERVER = PagedServer(
    program="vLLM",
    heading="vLLM 0.32",
    page_tokens=16,  # `CacheConfig.DEFAULT_BLOCK_SIZE`
    pages="blocks",
    command=("vllm", "serve"),
    tokenizer="--tokenizer",
    name="--served-model-name",
    n_ctx="--max-model-len",
    n_slots="--max-num-seqs",
    share="--gpu-memory-utilization",
    n_tensor="--tensor-parallel-size",
    n_pipeline="--pipeline-parallel-size",
    eight_bits="fp8",
    adapters=("--enable-lora", "--lora-modules"),
    counts=("--enable-prompt-tokens-details",),  # of tokens that were reused
    offered=("head", "lookup", "draft"),
    nodes=_nodes,
    drafts=_drafts,
    remarks=_remarks,
)
FORMAT = Format("vllm", "vLLM, on one machine or several", named_file(".vllm.sh"), SERVER.render)
