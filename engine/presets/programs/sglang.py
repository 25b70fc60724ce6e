"""SGLang's launch: `sglang.launch_server` for each machine, with HiCache's sizes.

Checked with the sources of 0.5.23 (`sglang/srt/server_args.py`).
"""

from collections.abc import Iterator

from engine.configuration import ControllerName, PredictorName
from engine.presets.programs.base import (
    Exported,
    ExportError,
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

PROGRAM = "SGLang"
PAGE_TOKENS = 1
"""`page_size` where nobody says another."""
START_PORT = 20000


def render(request: ExportRequest) -> Exported:
    """A script of the first machine; those of the others come beside it.

    Raises:
        ExportError: a path that cannot be written, or machines with different numbers of GPUs.
    """
    placed = with_absolute_paths(request)
    spread = spread_of(placed, PAGE_TOKENS)
    if not spread.is_even:
        counts = ", ".join(f"{node.host} {len(node.gpus)}" for node in spread.nodes)
        raise ExportError(
            f"SGLang wants as many GPUs on each machine, but there are {counts}: leave some out, "
            "or export for vllm"
        )
    remarks = tuple(_remarks(placed, spread))
    commands = [_words(placed, spread, rank) for rank in range(len(spread.nodes))]
    return launch(request, "SGLang 0.5", remarks, spread, commands)


def _words(request: ExportRequest, spread: Spread, rank: int) -> list[str]:
    configuration = request.configuration
    tokenizer = tokenizer_of(request.model)
    words = ["python", "-m", "sglang.launch_server"]
    words += ["--model-path", writable(str(configuration.model_path)), "--load-format", "gguf"]
    words += [] if tokenizer is None else ["--tokenizer-path", tokenizer]
    words += ["--served-model-name", slug(request.name)]
    words += ["--context-length", str(n_ctx_of_chat(configuration))]
    words += ["--max-running-requests", str(configuration.n_slots)]
    words += ["--mem-fraction-static", f"{utilization(request):g}"]
    if number_bytes(configuration) < HALF_BYTES:
        words += ["--kv-cache-dtype", "fp8_e5m2"]
    if spread.n_tensor > 1:
        words += ["--tp-size", str(spread.n_tensor)]
    if spread.n_pipeline > 1:
        words += ["--pp-size", str(spread.n_pipeline)]
    if len(spread.nodes) > 1:
        words += ["--nnodes", str(len(spread.nodes)), "--node-rank", str(rank)]
        words += ["--dist-init-addr", f"{spread.nodes[0].host}:{START_PORT}"]
    words += list(_drafts(request))
    if configuration.adapters:
        words += ["--lora-paths", *named_adapters(configuration)]
    words += ["--enable-metrics", "--enable-cache-report"]
    return [*words, "--host", writable(request.host), "--port", str(request.port)]


def _drafts(request: ExportRequest) -> Iterator[str]:
    configuration, speculation = request.configuration, request.configuration.speculation
    is_fixed = speculation.controller is ControllerName.FIXED
    n_draft = speculation.n_draft if is_fixed else speculation.n_draft_max
    if speculation.predictor is PredictorName.DRAFT and configuration.draft is not None:
        yield from ("--speculative-algorithm", "STANDALONE")
        yield from (
            "--speculative-draft-model-path",
            writable(str(configuration.draft.model_path)),
        )
        yield from ("--speculative-num-steps", str(speculation.n_draft))
        yield from ("--speculative-eagle-topk", "1")
        yield from ("--speculative-num-draft-tokens", str(speculation.n_draft + 1))
    elif speculation.drafts_from_text:
        yield from ("--speculative-algorithm", "NGRAM")
        yield from ("--speculative-num-draft-tokens", str(n_draft))


def _remarks(request: ExportRequest, spread: Spread) -> Iterator[str]:
    yield from sizes_text(request, spread, "pages")
    yield from lost(request, spread, PROGRAM)
    configuration, speculation = request.configuration, request.configuration.speculation
    if speculation.predictor in (PredictorName.SUFFIX, PredictorName.COMBINED):
        yield f"the predictor is {speculation.predictor}: SGLang gets its look-up (NGRAM) instead"
    if speculation.predictor is PredictorName.CUSTOM:
        yield f"the predictor {speculation.predictor_title} is a plugin of kvchat's: no drafts"
    if configuration.n_mtp_draft:
        yield (
            f"n_mtp_draft is {configuration.n_mtp_draft}: SGLang takes the head of a model from "
            "original weights only (--speculative-algorithm NEXTN)"
        )
    yield from one_length(configuration, PROGRAM)
    if tier := tier_gib(request) // len(spread.nodes[0].gpus):
        n_ctx = n_ctx_of_chat(configuration)
        nbytes = spread.cache_bytes(n_ctx)
        chats = f" holds {tier * 10**9 // nbytes:,} chats of {n_ctx:,} tokens" if nbytes else ""
        yield (
            f"a second tier of the cache in main memory{chats}: add --enable-hierarchical-cache "
            f"--hicache-size {tier}, and --hicache-storage-backend file for a third one on disk"
        )


FORMAT = Format("sglang", "SGLang, on one machine or several", named_file(".sglang.sh"), render)
