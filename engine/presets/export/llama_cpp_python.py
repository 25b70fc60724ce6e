"""The configuration file of `python -m llama_cpp.server` (llama-cpp-python 0.3.36)."""

import json
from collections.abc import Iterator

from engine.configuration import Configuration
from engine.presets.export.elsewhere import (
    left_behind,
    no_band,
    no_draft,
    no_head,
    no_lookup,
    no_sampling,
    only_lookup,
)
from engine.presets.export.request import (
    Exported,
    ExportRequest,
    slug,
    with_absolute_paths,
    writable,
)

PROGRAM = "llama-cpp-python's server"
TYPE_NUMBERS = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6,
    "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30,
}  # fmt: skip
"""Numbers of ggml's types (llama.cpp `ggml.h`, `enum ggml_type`)."""
SPLIT_MODES = {"none": 0, "layer": 1}

_CONSEQUENCES = {
    "n_slots": "it answers one request after the other",
    "n_cpu_moe": "so experts lie with their layers",
    "tensor_overrides": "and every tensor lies with its layer",
    "mmproj_offload": "and the projector goes to a GPU",
    "use_extra_buffers": "and weights may be repacked",
}


def file_name(request: ExportRequest) -> str:
    """Give a name for the file."""
    return f"{slug(request.name)}.llama-cpp-python.json"


def render(request: ExportRequest) -> Exported:
    """Give the file; start with `python -m llama_cpp.server --config_file FILE`."""
    configuration = with_absolute_paths(request).configuration
    settings = {
        "host": request.host,
        "port": request.port,
        "models": [_model(configuration, slug(request.name))],
    }
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    return Exported(text, tuple(_remarks(request)))


def _model(configuration: Configuration, alias: str) -> dict[str, object]:
    settings: dict[str, object] = {
        "model": writable(str(configuration.model_path)),
        "model_alias": alias,
        "n_ctx": configuration.n_ctx,
        "n_batch": configuration.n_batch,
        "n_ubatch": configuration.n_ubatch,
        "n_gpu_layers": configuration.n_gpu_layers,
        "split_mode": SPLIT_MODES[configuration.split_mode],
        "main_gpu": configuration.main_gpu,
        "tensor_split": list(configuration.tensor_split) or None,
        "offload_kqv": configuration.offload_kqv,
        "flash_attn": configuration.flash_attention != "off",
        "type_k": TYPE_NUMBERS[configuration.type_k],
        "type_v": TYPE_NUMBERS[configuration.type_v],
        "last_n_tokens_size": configuration.sampling.repetition_window,
        "logits_all": False,  # the server's default keeps a row of logits for every token
    }
    if configuration.n_threads is not None:
        settings["n_threads"] = configuration.n_threads
    if configuration.lora_paths:
        settings["lora_path"] = writable(str(configuration.lora_paths[0]))
    if configuration.mmproj_path is not None:
        settings["clip_model_path"] = writable(str(configuration.mmproj_path))
        settings["chat_format"] = "mtmd"
    if configuration.speculation.drafts_from_text:
        settings["draft_model"] = "prompt-lookup-decoding"
        settings["draft_model_num_pred_tokens"] = configuration.speculation.n_draft
    return settings


def _remarks(request: ExportRequest) -> Iterator[str]:
    configuration = request.configuration
    if configuration.flash_attention == "auto":
        yield f"flash_attention is auto: {PROGRAM} has on and off, and gets on"
    if not configuration.swa_full and (request.model is None or _has_windows(request)):
        yield (
            f"swa_full is off: {PROGRAM} keeps every token of layers with a sliding window, and "
            "needs more memory than planned where a model has such layers"
        )
    if len(configuration.lora_paths) > 1:
        yield f"there are {len(configuration.lora_paths)} adapters: {PROGRAM} takes the first only"
    if configuration.speculation.drafts_from_text:
        yield from only_lookup(configuration, PROGRAM)
        yield from no_band(configuration, PROGRAM)
    else:
        yield from no_lookup(configuration, PROGRAM)
    yield from no_draft(configuration, PROGRAM)
    yield from no_head(configuration, PROGRAM)
    yield from left_behind(configuration, PROGRAM, _CONSEQUENCES)
    yield no_sampling(configuration, PROGRAM)


def _has_windows(request: ExportRequest) -> bool:
    model = request.model
    return model is not None and any(
        layer.window is not None for layer in model.architecture.layers.values()
    )
