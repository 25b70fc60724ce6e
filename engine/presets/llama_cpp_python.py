"""The configuration file of `python -m llama_cpp.server` (llama-cpp-python 0.3.36)."""

from engine.model.ggml import GGML_TYPES, TYPE_NUMBERS
from engine.presets import export, fields
from engine.presets.export import Exported, ExportRequest, Imported, ImportRequest
from engine.presets.fields import FieldRow, Fields

PROGRAM = "llama-cpp-python's server"
SOURCE = "a llama-cpp-python server configuration"
MODES = {"none": 0, "layer": 1}
LOOKUP, DEFAULT_LOOKUP = "prompt-lookup-decoding", 10
"""Name and default draft length of llama-cpp-python's lookup (`llama_cpp/server/settings.py`)."""
DEFAULTS: Fields = {
    "n_ctx": 2048, "n_batch": 512, "n_ubatch": 512, "n_gpu_layers": 0, "swa_full": True,
    "flash_attention": "off", "speculation.predictor": "off",
}  # fmt: skip
_IN_REQUESTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def _type(number: object) -> str:
    known = GGML_TYPES.get(number) if isinstance(number, int) else None
    return known.name if known else str(number)


ROWS = (
    FieldRow("model", "model", export.writable),
    FieldRow("mmproj", "clip_model_path", export.writable),
    FieldRow("lora", "lora_path", read=lambda value: [value]),
    FieldRow("n_gpu_layers", "n_gpu_layers", lambda value: -1 if value == "all" else value,
        lambda value: "all" if value < 0 else fields.layers_from(value)),
    FieldRow("split_mode", "split_mode", MODES.get,
        lambda number: {value: name for name, value in MODES.items()}[number]),
    FieldRow("tensor_split", "tensor_split", list),
    FieldRow("flash_attention", "flash_attn", lambda value: value != "off",
        lambda value: "on" if value else "off"),
    FieldRow("type_k", "type_k", TYPE_NUMBERS.get, _type),
    FieldRow("type_v", "type_v", TYPE_NUMBERS.get, _type),
    FieldRow("sampling.repetition_window", "last_n_tokens_size"),
    *(
        FieldRow(name, name)
        for name in ("n_ctx", "n_batch", "n_ubatch", "main_gpu", "offload_kqv", "n_threads",
                     "n_threads_batch", "use_mmap")
    ),
)  # fmt: skip


def render(request: ExportRequest) -> Exported:
    """The file; start with `python -m llama_cpp.server --config_file FILE`."""
    request = export.with_absolute_paths(request)
    configuration = request.configuration
    model: Fields = {
        **fields.write_rows(ROWS, configuration),
        "model_alias": export.slug(request.name),
        "logits_all": False,  # the server's default stores a row of logits for every token
    }
    if configuration.adapters:
        model["lora_path"] = export.writable(str(configuration.lora_paths[0]))
    if configuration.mmproj_path is not None:
        model["chat_format"] = "mtmd"
    if fields.drafters(configuration, "lookup"):
        n_draft = configuration.speculation.n_draft
        model |= {"draft_model": LOOKUP, "draft_model_num_pred_tokens": n_draft}
    settings = {"host": request.host, "port": request.port, "models": [model]}
    found = read(ImportRequest(data=settings)).preset
    layers = None if request.model is None else request.model.architecture.layers.values()
    has_windows = layers is None or any(layer.window is not None for layer in layers)
    skipped = (*_IN_REQUESTS, *(() if has_windows else ("swa_full",)))
    values = ", ".join(f"{name} {getattr(configuration.sampling, name):g}" for name in _IN_REQUESTS)
    lost = fields.differences(configuration, found, PROGRAM, skipped)
    more = f"sampling ({values}): {PROGRAM} expects these settings in each request"
    return Exported(export.json_text(settings), (*lost, more))


def read(request: ImportRequest) -> Imported:
    """The preset of one model, which `request.entry` names if there are several."""
    data: Fields = dict(request.data)
    models = {_name(each): each for each in data.pop("models") if isinstance(each, dict)}
    if not models:
        raise export.ImportedFileError(f"{SOURCE} lists no model")
    title = export.chosen(models, request.entry, "model")
    given = {**data, **models[title]}
    for key in ("model_alias", "logits_all", "chat_format"):
        given.pop(key, None)
    found = {"name": title, **DEFAULTS, **fields.read_rows(ROWS, given)}
    n_draft = given.pop("draft_model_num_pred_tokens", DEFAULT_LOOKUP)
    if given.get("draft_model") == LOOKUP:
        del given["draft_model"]
        found["speculation.predictor"], found["speculation.controller"] = "lookup", "fixed"
        found["speculation.n_draft"] = n_draft
    note = f"{PROGRAM} expects sampling settings in each request: kvchat's defaults are used"
    return fields.imported(found, SOURCE, fields.listed(given), [note])


def _name(model: Fields) -> str:
    alias = model.get("model_alias")
    return alias if isinstance(alias, str) and alias else fields.file_stem(str(model.get("model")))
