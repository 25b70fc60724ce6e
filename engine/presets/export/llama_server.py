"""Arguments of llama-server, in the flag set of llama.cpp b11434 (October 2026).

Every value that kvchat planned with is said, so that nothing is left to `--fit` or to a default
that changed: `-np` and `-fit off` among them. A draft model does nothing there without
`--spec-type` (llama.cpp issue 25345), so that is said too.
"""

import shlex

from engine.configuration import Configuration, PredictorName
from engine.model.architecture import Model

PROGRAM = "llama-server"


def arguments(configuration: Configuration) -> list[str]:
    """Give the arguments behind the program's name."""
    return [
        "--model",
        str(configuration.model_path),
        "--ctx-size",
        str(configuration.n_ctx),
        "--batch-size",
        str(configuration.n_batch),
        "--ubatch-size",
        str(configuration.n_ubatch),
        "--parallel",
        str(configuration.n_slots),
        *(["--kv-unified"] if configuration.kv_unified and configuration.n_slots > 1 else []),
        "--cache-type-k",
        configuration.type_k,
        "--cache-type-v",
        configuration.type_v,
        "--flash-attn",
        configuration.flash_attention,
        "--n-gpu-layers",
        _layers(configuration.n_gpu_layers),
        "--fit",
        "off",
        *(["--swa-full"] if configuration.swa_full else []),
        *([] if configuration.offload_kqv else ["--no-kv-offload"]),
        *([] if configuration.use_extra_buffers else ["--no-repack"]),
        *_threads(configuration),
        *_sampling(configuration),
        *_speculation(configuration),
    ]


def command_line(configuration: Configuration) -> str:
    """Give the whole command, quoted for a POSIX shell."""
    return shlex.join([PROGRAM, *arguments(configuration)])


def remarks(configuration: Configuration, model: Model | None = None) -> list[str]:
    """Say what the target program does otherwise than kvchat."""
    notes = []
    speculation = configuration.speculation
    if speculation.predictor is PredictorName.LOOKUP:
        notes.append(
            "llama-server's n-gram look-up drafts a fixed number of tokens: the band rule stays "
            "behind"
        )
    if speculation.predictor is PredictorName.DRAFT:
        notes.append("llama-server gives the draft model a context as long as its target's")
    if model is not None and model.file.chat_template is None:
        notes.append("the model has no chat template: llama-server will guess one")
    return notes


def _layers(n_gpu_layers: int) -> str:
    return "all" if n_gpu_layers < 0 else str(n_gpu_layers)


def _threads(configuration: Configuration) -> list[str]:
    n_threads = configuration.n_threads
    return [] if n_threads is None else ["--threads", str(n_threads)]


def _sampling(configuration: Configuration) -> list[str]:
    sampling = configuration.sampling
    return [
        "--temp",
        f"{sampling.temperature:g}",
        "--top-k",
        str(sampling.top_k),
        "--top-p",
        f"{sampling.top_p:g}",
        "--min-p",
        f"{sampling.min_p:g}",
        "--repeat-penalty",
        f"{sampling.repetition_penalty:g}",
        "--repeat-last-n",
        str(sampling.repetition_window),
    ]


def _speculation(configuration: Configuration) -> list[str]:
    speculation = configuration.speculation
    match speculation.predictor:
        case PredictorName.OFF:
            return []
        case PredictorName.LOOKUP:
            return [
                "--spec-type",
                "ngram-simple",
                "--spec-ngram-simple-size-n",
                str(speculation.lookup_pattern_min),
                "--spec-ngram-simple-size-m",
                str(speculation.n_draft),
            ]
        case PredictorName.DRAFT:
            return _draft(configuration)


def _draft(configuration: Configuration) -> list[str]:
    draft, speculation = configuration.draft, configuration.speculation
    if draft is None:
        return []
    return [
        "--spec-type",
        "draft-simple",
        "--model-draft",
        str(draft.model_path),
        "--spec-draft-n-max",
        str(speculation.n_draft),
        "--spec-draft-n-min",
        str(min(speculation.draft_min_tokens, speculation.n_draft)),
        "--spec-draft-p-min",
        f"{speculation.draft_min_confidence:g}",
        "--spec-draft-ngl",
        _layers(draft.n_gpu_layers),
        "--spec-draft-type-k",
        draft.type_k,
        "--spec-draft-type-v",
        draft.type_v,
    ]
