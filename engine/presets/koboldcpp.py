"""Settings of koboldcpp: a `.kcpps` is the JSON of its options.

Checked with the options of 1.117.1; names from before 1.102 are left out.
"""

import json
from collections.abc import Iterator

from engine.configuration import Configuration
from engine.parsing import parse_json
from engine.presets import export, fields
from engine.presets.export import Exported, ExportRequest, Imported, ImportRequest
from engine.presets.fields import FieldRow, Fields

PROGRAM, SOURCE = "koboldcpp", "settings of koboldcpp"
QUANT_KV: dict[str, int | str] = {"f16": 0, "q8_0": 1, "q4_0": 2, "bf16": "bf16", "q5_1": "q5_1"}
"""Numbers that every version reads, and names that only those of 2026 do."""
BATCHES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
DEFAULTS: Fields = {"n_ctx": 8192, "n_gpu_layers": "auto", "speculation.predictor": "off"}


def _positive(value: object) -> int:
    if (count := int(str(value))) < 1:
        raise ValueError
    return count


ROWS = (
    FieldRow("model", "model_param", export.writable),
    FieldRow("n_ctx", "contextsize", read=_positive),
    FieldRow("n_ubatch", "batchsize",
        lambda n: max((size for size in BATCHES if size <= n), default=BATCHES[0]), _positive),
    FieldRow("swa_full", "noswa", read=bool),
    FieldRow("offload_kqv", "lowvram", lambda value: not value, lambda value: not value),
    FieldRow("flash_attention", "noflashattention", lambda value: value == "off",
        lambda value: "off" if value else "on"),
    FieldRow("n_gpu_layers", "gpulayers", fields.layers_number, fields.layers_from),
    FieldRow("main_gpu", "maingpu"),
    FieldRow("tensor_split", "tensor_split", list),
    FieldRow("n_cpu_moe", "moecpu", fields.layers_number,
        lambda value: fields.layers_from(max(value, 0))),
    FieldRow("tensor_overrides", "overridetensors",
        lambda rules: export.writable(",".join(map(fields.override_text, rules))),
        fields.overrides_from),
    FieldRow("n_threads", "threads", read=_positive),
    FieldRow("mmproj", "mmproj", export.writable),
    FieldRow("type_k", "quantkv", lambda _: None,
        lambda value: next((k for k, n in QUANT_KV.items() if n == value), str(value))),
    FieldRow("lora", "lora", list, lambda value: value if isinstance(value, list) else [value]),
)  # fmt: skip
DRAFTS = (
    FieldRow("speculation.n_draft", "draftamount", read=_positive),
    FieldRow("draft.model", "draftmodel", export.writable),
    FieldRow("draft.n_gpu_layers", "draftgpulayers", fields.layers_number, fields.draft_layers),
)
SAMPLING = tuple(
    FieldRow(f"sampling.{field}", key)
    for key, field in {
        "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
        "rep_pen": "repetition_penalty", "rep_pen_range": "repetition_window",
    }.items()
)  # fmt: skip
"""Sampling defaults of koboldcpp's API."""


def render(request: ExportRequest) -> Exported:
    """The settings; start with `koboldcpp --config FILE`."""
    configuration = export.with_absolute_paths(request).configuration
    settings: Fields = {
        **fields.write_rows(ROWS, configuration),
        "host": request.host,
        "port": request.port,
        "port_param": request.port,
        "quantkv": QUANT_KV[fields.one_type(configuration, QUANT_KV)],
        "autofit": False,
        "gendefaults": json.dumps(fields.write_rows(SAMPLING, configuration)),  # JSON within JSON
        "skiplauncher": True,
        **_others(configuration),
        **({} if request.uses_gpu else {"usecpu": True, "gpulayers": 0}),
    }
    found = read(ImportRequest(data=settings)).preset
    lost = fields.differences(configuration, found, PROGRAM)
    return Exported(export.json_text(settings), (*lost, *_conditions(configuration)))


def read(request: ImportRequest) -> Imported:
    """The preset of koboldcpp's options; those that are off or empty are not listed."""
    given = {key: value for key, value in request.data.items() if value not in (None, "")}
    written = _sampling(given)
    found = {
        **DEFAULTS,
        **fields.read_rows(ROWS, given),
        **fields.read_rows(SAMPLING, written),
        **_others_from(given),
    }
    found |= {"type_v": found["type_k"]} if "type_k" in found else {}
    found |= {"n_batch": found["n_ubatch"]} if "n_ubatch" in found else {}
    found["name"] = fields.file_stem(str(found.get("model") or SOURCE))
    left_out = [f"gendefaults {key} = {value}" for key, value in written.items()]
    left_out += fields.listed({key: value or None for key, value in given.items()})
    return fields.imported(found, SOURCE, left_out)


def _others(configuration: Configuration) -> Fields:
    """Settings that need more than one field or key."""
    one_gpu = configuration.split_mode == "none"
    others: Fields = {"usecuda": ["normal", *([str(configuration.main_gpu)] if one_gpu else [])]}
    if configuration.mmproj_path is not None:
        others["mmprojcpu"] = not configuration.mmproj_offload
    if configuration.adapters:
        others["lora"] = [export.writable(str(path)) for path in configuration.lora_paths]
    if fields.drafters(configuration, "draft"):
        others |= fields.write_rows(DRAFTS, configuration)
    if configuration.n_mtp_draft:  # beside a draft model, and with one length for both
        others |= {"usemtp": True, "draftamount": configuration.n_mtp_draft}
    return others


def _others_from(given: Fields) -> Fields:
    found: Fields = {}
    words = given.pop("usecuda", None)
    cards = [int(x) for x in words if str(x).isdecimal()] if isinstance(words, list) else []
    if cards:
        found |= {"split_mode": "none", "main_gpu": cards[0]}
    if given.pop("usecpu", False):
        found["n_gpu_layers"] = 0
    if "mmprojcpu" in given:
        found["mmproj_offload"] = not given.pop("mmprojcpu")
    for key in ("skiplauncher", "host", "port", "port_param"):
        given.pop(key, None)
    drafts = fields.read_rows(DRAFTS, given)
    if given.pop("usemtp", False):
        found["n_mtp_draft"] = drafts.get("speculation.n_draft", fields.HEAD_DRAFT)
    if "draft.model" in drafts:
        found |= {**drafts, "speculation.predictor": "draft"}
    return found


def _sampling(given: Fields) -> Fields:
    """The JSON within the JSON; a text that is none stays."""
    written = given.get("gendefaults")
    try:
        found = parse_json(written) if isinstance(written, str) else written
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    del given["gendefaults"]
    return dict(found)


def _conditions(configuration: Configuration) -> Iterator[str]:
    if not 256 <= configuration.n_ctx <= 524288:
        yield f"n_ctx is {configuration.n_ctx}: koboldcpp accepts 256 to 524288"
    if configuration.flash_attention == "off" and configuration.type_v not in ("f16", "bf16"):
        yield "flash attention is off: koboldcpp then quantises only the keys"
