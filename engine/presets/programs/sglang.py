"""SGLang's launch: `sglang.launch_server` for each machine, with HiCache's sizes.

Checked with the sources of 0.5.23 (`sglang/srt/server_args.py`).
"""

from collections.abc import Iterator

from engine.configuration import Configuration
from engine.presets.programs.base import (
    ExportError,
    ExportRequest,
    Format,
    named_file,
    writable,
)
from engine.presets.programs.paged_server import (
    PagedServer,
    Spread,
    machines_text,
    n_ctx_of_chat,
    n_drafted,
    tier_gib,
)
from engine.presets.programs.remarks import Drafter

START_PORT = 20000


def _nodes(spread: Spread, rank: int) -> Iterator[str]:
    if not spread.is_even:
        raise ExportError(
            f"SGLang wants as many GPUs on each machine, but there are {machines_text(spread)}: "
            "leave some out, or export for vllm"
        )
    yield from ("--nnodes", str(len(spread.nodes)), "--node-rank", str(rank))
    yield from ("--dist-init-addr", f"{spread.nodes[0].host}:{START_PORT}")


def _drafts(configuration: Configuration, drafting: tuple[Drafter, ...]) -> Iterator[str]:
    speculation, draft = configuration.speculation, configuration.draft
    if "draft" in drafting and draft is not None:
        path = writable(str(draft.model_path))
        yield from ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", path)
        yield from ("--speculative-num-steps", str(speculation.n_draft))
        yield from ("--speculative-eagle-topk", "1")
        yield from ("--speculative-num-draft-tokens", str(speculation.n_draft + 1))
    elif "lookup" in drafting:
        yield from ("--speculative-algorithm", "NGRAM")
        yield from ("--speculative-num-draft-tokens", str(n_drafted(configuration, drafting)))


def _remarks(request: ExportRequest, spread: Spread) -> Iterator[str]:
    configuration = request.configuration
    if configuration.n_mtp_draft:
        yield (
            f"n_mtp_draft is {configuration.n_mtp_draft}: SGLang takes the head of a model from "
            "original weights only (--speculative-algorithm NEXTN)"
        )
    if tier := tier_gib(request) // len(spread.nodes[0].gpus):
        n_ctx = n_ctx_of_chat(configuration)
        nbytes = spread.cache_bytes(n_ctx)
        chats = f" holds {tier * 10**9 // nbytes:,} chats of {n_ctx:,} tokens" if nbytes else ""
        yield (
            f"a second tier of the cache in main memory{chats}: add --enable-hierarchical-cache "
            f"--hicache-size {tier}, and --hicache-storage-backend file for a third one on disk"
        )


SERVER = PagedServer(
    program="SGLang",
    heading="SGLang 0.5",
    page_tokens=1,  # `page_size` where nobody says another
    pages="pages",
    command=("python", "-m", "sglang.launch_server", "--load-format", "gguf", "--model-path"),
    tokenizer="--tokenizer-path",
    name="--served-model-name",
    n_ctx="--context-length",
    n_slots="--max-running-requests",
    share="--mem-fraction-static",
    n_tensor="--tp-size",
    n_pipeline="--pp-size",
    eight_bits="fp8_e5m2",
    adapters=("--lora-paths",),
    counts=("--enable-metrics", "--enable-cache-report"),
    offered=("lookup", "draft"),
    nodes=_nodes,
    drafts=_drafts,
    remarks=_remarks,
)
FORMAT = Format(
    "sglang", "SGLang, on one machine or several", named_file(".sglang.sh"), SERVER.render
)
