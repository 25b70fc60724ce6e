"""The configuration file of `python -m llama_cpp.server` (llama-cpp-python 0.3.36)."""

import json
from collections.abc import Iterator, Mapping

from engine.configuration import Configuration
from engine.model.ggml_types import GGML_TYPES, TYPE_NUMBERS
from engine.presets.programs.base import (
    Exported,
    ExportRequest,
    Format,
    Imported,
    ImportedFileError,
    ImportRequest,
    chosen,
    json_text,
    named_file,
    slug,
    with_absolute_paths,
    writable,
)
from engine.presets.programs.remarks import Drafter, differences, drafters, drafting_remarks
from engine.presets.programs.rules import (
    ALL_LAYERS,
    Data,
    file_stem,
    kv_type,
    validate_preset,
    whole_number,
)

PROGRAM = "llama-cpp-python's server"
OFFERED: tuple[Drafter, ...] = ("lookup",)
SAID_AT_ONCE = ("swa_full", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Fields that one remark is for, whatever their values."""
SOURCE = "a configuration of llama-cpp-python's server"
SPLIT_MODES = {"none": 0, "layer": 1}
LOOKUP = "prompt-lookup-decoding"
DEFAULT_LOOKUP = 10
"""Tokens that its look-up drafts (`llama_cpp/server/settings.py`)."""
DEFAULTS: Data = {"n_ctx": 2048, "n_batch": 512, "n_ubatch": 512, "n_gpu_layers": 0}

_PLAIN = (
    "n_ctx", "n_batch", "n_ubatch", "main_gpu", "offload_kqv", "n_threads", "n_threads_batch",
    "use_mmap",
)  # fmt: skip
"""Settings that are written as a preset has them; none where the value is None."""
_NO_NEWS = frozenset({"model_alias", "logits_all", "chat_format"})


def render(request: ExportRequest) -> Exported:
    """The file; start with `python -m llama_cpp.server --config_file FILE`."""
    request = with_absolute_paths(request)
    configuration = request.configuration
    settings = {
        "host": request.host,
        "port": request.port,
        "models": [_model(configuration, slug(request.name))],
    }
    found = read(ImportRequest("", settings)).preset
    differing = differences(configuration, found, PROGRAM, skipped=SAID_AT_ONCE)
    remarks = (*differing, *_remarks(request))
    return Exported(json_text(settings), remarks)


def is_python_server(request: ImportRequest) -> bool:
    """Whether a JSON object lists models of llama-cpp-python's server."""
    return request.data is not None and isinstance(request.data.get("models"), list)


def read(request: ImportRequest) -> Imported:
    """The preset of one model.

    Raises:
        ImportedFileError: it lists none, several and none is named, or a value is out of range.
    """
    data = dict(request.data or {})
    listed = data.pop("models")
    assert isinstance(listed, list)
    models = {_name(each): each for each in listed if isinstance(each, dict)}
    if not models:
        raise ImportedFileError(f"{SOURCE} lists no model")
    title = chosen(models, request.entry, "model")
    given: dict[str, object] = {**data, **models[title]}
    left_out: list[str] = []
    rules = _rules(given, left_out)
    left_out += [
        f"{key} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in given.items()
        if key not in _NO_NEWS and value is not None
    ]
    preset = validate_preset({"name": request.name or title, **rules}, SOURCE)
    notes = (f"{PROGRAM} takes sampling settings with each request: kvchat's defaults are used",)
    return Imported(preset, SOURCE, tuple(left_out), notes)


# --- from a configuration ---


def _model(configuration: Configuration, alias: str) -> dict[str, object]:
    plain = ((key, getattr(configuration, key)) for key in _PLAIN)
    settings: dict[str, object] = {
        "model": writable(str(configuration.model_path)),
        "model_alias": alias,
        **{key: value for key, value in plain if value is not None},
        "n_gpu_layers": configuration.n_gpu_layers,
        "split_mode": SPLIT_MODES[configuration.split_mode],
        "tensor_split": list(configuration.tensor_split) or None,
        "flash_attn": configuration.flash_attention != "off",
        "type_k": TYPE_NUMBERS[configuration.type_k],
        "type_v": TYPE_NUMBERS[configuration.type_v],
        "last_n_tokens_size": configuration.sampling.repetition_window,
        "logits_all": False,  # the server's default keeps a row of logits for every token
    }
    if configuration.lora_paths:
        settings["lora_path"] = writable(str(configuration.lora_paths[0]))
    if configuration.mmproj_path is not None:
        settings["clip_model_path"] = writable(str(configuration.mmproj_path))
        settings["chat_format"] = "mtmd"
    if drafters(configuration, OFFERED):
        settings["draft_model"] = LOOKUP
        settings["draft_model_num_pred_tokens"] = configuration.speculation.n_draft
    return settings


def _remarks(request: ExportRequest) -> Iterator[str]:
    configuration = request.configuration
    drafting, n_draft = drafters(configuration, OFFERED), configuration.speculation.n_draft
    yield from drafting_remarks(configuration, PROGRAM, drafting, n_draft)
    if not configuration.swa_full and (request.model is None or _has_windows(request)):
        yield (
            f"swa_full is off: {PROGRAM} caches every token of sliding-window layers and "
            "needs more memory than planned for models with such layers"
        )
    sampling = configuration.sampling
    yield (
        f"sampling (temperature {sampling.temperature:g}, top_k {sampling.top_k}, top_p "
        f"{sampling.top_p:g}, min_p {sampling.min_p:g}, repetition_penalty "
        f"{sampling.repetition_penalty:g}): {PROGRAM} takes it with each request"
    )


def _has_windows(request: ExportRequest) -> bool:
    model = request.model
    return model is not None and any(
        layer.window is not None for layer in model.architecture.layers.values()
    )


# --- to rules ---


def _name(model: Mapping[str, object]) -> str:
    alias = model.get("model_alias")
    return alias if isinstance(alias, str) and alias else file_stem(str(model.get("model", "")))


def _rules(given: dict[str, object], left_out: list[str]) -> Data:
    """The rules that settings come to; those settings are taken away."""
    rules: Data = {**DEFAULTS, "swa_full": True}  # its default, which the file cannot name
    for key in _PLAIN:
        if given.get(key) is not None:
            rules[key] = given.pop(key)
    if model := given.pop("model", None):
        rules["model"] = model
    n_layers = whole_number(given.pop("n_gpu_layers", 0)) or 0
    rules["n_gpu_layers"] = "all" if n_layers < 0 or n_layers >= ALL_LAYERS else n_layers
    for key in ("type_k", "type_v"):
        rules[key] = _kv_type(given.pop(key, None), key, left_out)
    modes = {number: name for name, number in SPLIT_MODES.items()}
    if (mode := whole_number(given.get("split_mode"))) in modes:
        rules["split_mode"] = modes[mode]
        del given["split_mode"]
    rules["flash_attention"] = "on" if given.pop("flash_attn", False) else "off"
    if split := given.pop("tensor_split", None):
        rules["tensor_split"] = split
    if adapter := given.pop("lora_path", None):
        rules["lora"] = [adapter]
    if projector := given.pop("clip_model_path", None):
        rules["mmproj"] = projector
    if (window := whole_number(given.pop("last_n_tokens_size", None))) is not None:
        rules["sampling"] = {"repetition_window": window}
    rules["speculation"] = _speculation(given)
    return rules


def _kv_type(number: object, key: str, left_out: list[str]) -> str:
    count = whole_number(number)
    known = GGML_TYPES.get(-1 if count is None else count)
    written = known.name if known else None if number is None else str(number)
    return kv_type(written, key, left_out)


def _speculation(given: dict[str, object]) -> Data:
    n_draft = given.pop("draft_model_num_pred_tokens", DEFAULT_LOOKUP)
    if given.get("draft_model") != LOOKUP:
        return {"predictor": "off"}
    del given["draft_model"]
    return {"predictor": "lookup", "controller": "fixed", "n_draft": n_draft}


FORMAT = Format(
    "llama-cpp-python",
    "llama-cpp-python server, JSON",
    named_file(".llama-cpp-python.json"),
    render,
    has_comments=False,
    recognises=is_python_server,
    read=read,
)
