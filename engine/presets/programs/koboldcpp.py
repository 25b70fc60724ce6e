"""Settings of koboldcpp: a `.kcpps` is the JSON of its options.

Checked with the options of 1.117.1; where a name changed since 1.102 (`useswa` became `noswa`,
`flashattention` became `noflashattention`) both are written and read, for it ignores what it does
not know.
"""

import json
from collections.abc import Iterator, Mapping

from engine.configuration import Configuration
from engine.parsing import parse_json
from engine.presets.programs.base import (
    Exported,
    ExportRequest,
    Format,
    Imported,
    ImportRequest,
    json_text,
    named_file,
    with_absolute_paths,
    writable,
)
from engine.presets.programs.remarks import (
    Drafter,
    differences,
    drafters,
    drafting_remarks,
    one_type,
)
from engine.presets.programs.rules import (
    ALL_LAYERS,
    Data,
    as_list,
    device_name,
    file_stem,
    kv_type,
    layers_rule,
    layers_written,
    override_rule,
    validate_preset,
    whole,
    whole_number,
)

PROGRAM = "koboldcpp"
SOURCE = "settings of koboldcpp"
MARKS = frozenset({"model_param", "contextsize", "gpulayers", "quantkv"})
QUANT_KV: dict[str, int | str] = {"f16": 0, "q8_0": 1, "q4_0": 2, "bf16": "bf16", "q5_1": "q5_1"}
"""Numbers that every version reads, and names that only those of 2026 do."""
BATCHES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
DEFAULT_N_CTX = 8192
DEFAULT_HEAD_DRAFT = 3
OFFERED: tuple[Drafter, ...] = ("draft",)
"""What drafts beside the model's own head, which leaves a draft model its place."""

_SAMPLING: Mapping[str, str] = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "rep_pen": "repetition_penalty", "rep_pen_range": "repetition_window",
}  # fmt: skip
"""Defaults of its API by the names that a preset has for them."""
_NO_NEWS = frozenset({"skiplauncher"})


def render(request: ExportRequest) -> Exported:
    """The settings; start with `koboldcpp --config FILE`.

    Raises:
        ExportError: a path or pattern that no export can write.
    """
    configuration = with_absolute_paths(request).configuration
    settings = {
        "model_param": writable(str(configuration.model_path)),
        "host": request.host,
        "port": request.port,
        "port_param": request.port,
        "contextsize": configuration.n_ctx,
        "batchsize": _batch(configuration),
        "flashattention": configuration.flash_attention != "off",
        "noflashattention": configuration.flash_attention == "off",
        "quantkv": QUANT_KV[one_type(configuration, tuple(QUANT_KV))],
        "useswa": not configuration.swa_full,
        "noswa": configuration.swa_full,
        "lowvram": not configuration.offload_kqv,
        "autofit": False,
        "gendefaults": json.dumps(_sampling(configuration)),  # JSON within the JSON
        "skiplauncher": True,
        **_placement(request),
        **_others(configuration),
    }
    found = read(ImportRequest("", settings)).preset
    remarks = (*differences(configuration, found, PROGRAM), *_remarks(configuration))
    return Exported(json_text(settings), remarks)


def is_koboldcpp(request: ImportRequest) -> bool:
    """Whether a JSON object has options of koboldcpp."""
    return request.data is not None and bool(MARKS & request.data.keys())


def read(request: ImportRequest) -> Imported:
    """The preset of koboldcpp's options; those that are off or empty are no news.

    Raises:
        ImportedFileError: a value is out of range.
    """
    given = {key: value for key, value in (request.data or {}).items() if key not in _NO_NEWS}
    left_out: list[str] = []
    model = _first(given.pop("model_param", None) or given.pop("model", None))
    rules: Data = {
        **({} if model is None else {"model": model}),
        "n_ctx": DEFAULT_N_CTX,
        **_read_counts(given),
        **_read_cache(given, left_out),
        **_read_placement(given, left_out),
        **_read_companions(given),
        **_read_drafts(given),
        "sampling": _read_sampling(given, left_out),
    }
    left_out += [
        f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in given.items() if value
    ]
    called = request.name or file_stem(model or SOURCE)
    return Imported(validate_preset({"name": called, **rules}, SOURCE), SOURCE, tuple(left_out))


# --- from a configuration ---


def _placement(request: ExportRequest) -> dict[str, object]:
    configuration = request.configuration
    if not request.uses_gpu:
        return {"usecpu": True, "gpulayers": 0}
    one_gpu = configuration.split_mode == "none"
    return {
        "gpulayers": layers_written(configuration.n_gpu_layers),
        "usecuda": ["normal", str(configuration.main_gpu)] if one_gpu else ["normal"],
        "maingpu": configuration.main_gpu,
        "tensor_split": list(configuration.tensor_split) or None,
        "moecpu": layers_written(configuration.n_cpu_moe),
        "overridetensors": ",".join(
            f"{writable(each.pattern)}={device_name(each.device)}"
            for each in configuration.tensor_overrides
        ),
    }


def _others(configuration: Configuration) -> dict[str, object]:
    others: dict[str, object] = {}
    if configuration.n_threads is not None:
        others["threads"] = configuration.n_threads
    if configuration.mmproj_path is not None:
        others["mmproj"] = writable(str(configuration.mmproj_path))
        others["mmprojcpu"] = not configuration.mmproj_offload
    if configuration.lora_paths:
        others["lora"] = [writable(str(path)) for path in configuration.lora_paths]
    if configuration.n_mtp_draft:
        others["usemtp"] = True
        others["draftamount"] = configuration.n_mtp_draft
    draft = configuration.draft
    if draft is not None and "draft" in drafters(configuration, OFFERED):
        others["draftmodel"] = writable(str(draft.model_path))
        others.setdefault("draftamount", configuration.speculation.n_draft)
        others["draftgpulayers"] = layers_written(draft.n_gpu_layers)
    return others


def _sampling(configuration: Configuration) -> dict[str, object]:
    return {key: getattr(configuration.sampling, field) for key, field in _SAMPLING.items()}


def _batch(configuration: Configuration) -> int:
    fitting = [size for size in BATCHES if size <= configuration.n_ubatch]
    return fitting[-1] if fitting else BATCHES[0]


def _remarks(configuration: Configuration) -> Iterator[str]:
    drafting, n_draft = drafters(configuration, OFFERED), configuration.speculation.n_draft
    yield from drafting_remarks(configuration, PROGRAM, drafting, n_draft)
    if isinstance(QUANT_KV.get(configuration.type_k), str):
        yield f"type_k is {configuration.type_k}: koboldcpp before 2026 reads that as f16"
    if not 256 <= configuration.n_ctx <= 524288:
        yield f"n_ctx is {configuration.n_ctx}: koboldcpp takes 256 to 524288"
    if configuration.flash_attention == "off" and configuration.type_v not in ("f16", "bf16"):
        yield (
            f"type_v is {configuration.type_v} without flash attention: koboldcpp then quantises "
            "the keys only"
        )


# --- to rules ---


def _read_counts(given: dict[str, object]) -> Data:
    found: Data = {
        rule: count
        for key, rule in (("contextsize", "n_ctx"), ("threads", "n_threads"))
        if (count := whole_number(given.pop(key, None))) is not None and count > 0
    }
    for key in ("batchsize", "blasbatchsize"):
        n_batch = whole_number(given.pop(key, None))
        if n_batch is not None and n_batch > 0:
            found["n_batch"] = found["n_ubatch"] = n_batch
    return found


def _read_cache(given: dict[str, object], left_out: list[str]) -> Data:
    quant = given.pop("quantkv", 0)
    names = (name for name, number in QUANT_KV.items() if number == quant)
    kind = kv_type(next(names, str(quant)), "quantkv", left_out)
    without, with_ = given.pop("noflashattention", None), given.pop("flashattention", None)
    is_off = bool(without) if without is not None else with_ is False
    is_said = without is not None or with_ is not None
    whole_window, window = given.pop("noswa", None), given.pop("useswa", None)
    return {
        "type_k": kind,
        "type_v": kind,
        "flash_attention": "off" if is_off else "on" if is_said else "auto",
        "swa_full": bool(whole_window) if whole_window is not None else window is False,
        "offload_kqv": not given.pop("lowvram", False),
    }


def _read_placement(given: dict[str, object], left_out: list[str]) -> Data:
    n_layers = whole_number(given.pop("gpulayers", None))
    rules: Data = {"n_gpu_layers": "auto" if n_layers is None else layers_rule(n_layers)}
    if given.pop("usecpu", False):
        rules["n_gpu_layers"] = 0
    words = given.pop("usecuda", None) or given.pop("usecublas", None)
    cards = [
        card for word in as_list(words) if (card := whole(str(word))) is not None and card >= 0
    ]
    main_gpu = whole_number(given.pop("maingpu", None))
    if main_gpu is not None and main_gpu >= 0:
        rules["main_gpu"] = main_gpu
    if cards:
        rules.update(split_mode="none", main_gpu=cards[0])
    if split := given.pop("tensor_split", None):
        rules["tensor_split"] = split
    n_experts = whole_number(given.pop("moecpu", None)) or 0
    rules["n_cpu_moe"] = "all" if n_experts >= ALL_LAYERS else max(n_experts, 0)
    written = str(given.pop("overridetensors", None) or "")
    overrides = [override_rule(part, left_out) for part in written.split(",") if part]
    rules["tensor_overrides"] = [rule for rule in overrides if rule is not None]
    return rules


def _read_companions(given: dict[str, object]) -> Data:
    rules: Data = {}
    if projector := given.pop("mmproj", None):
        rules["mmproj"] = projector
        rules["mmproj_offload"] = not given.pop("mmprojcpu", False)
    if adapters := given.pop("lora", None):
        rules["lora"] = as_list(adapters) or [adapters]
    return rules


def _read_drafts(given: dict[str, object]) -> Data:
    rules: Data = {"speculation": {"predictor": "off"}}
    length = whole_number(given.pop("draftamount", None))
    if given.pop("usemtp", False):
        rules["n_mtp_draft"] = length or DEFAULT_HEAD_DRAFT
    n_layers = whole_number(given.pop("draftgpulayers", None))
    draft = _first(given.pop("draftmodel", None))
    if draft is not None:
        on_gpu = "all" if n_layers is None or n_layers < 0 else layers_rule(n_layers)
        rules["draft"] = {"model": draft, "n_gpu_layers": on_gpu}
        rules["speculation"] = {"predictor": "draft", **({"n_draft": length} if length else {})}
    return rules


def _read_sampling(given: dict[str, object], left_out: list[str]) -> Data:
    written = given.pop("gendefaults", None)
    if isinstance(written, str) and written:
        try:
            written = parse_json(written)
        except ValueError:
            left_out.append(f"gendefaults = {written}")
    if not isinstance(written, dict):
        return {}
    left_out += [f"gendefaults {key} = {written[key]}" for key in written if key not in _SAMPLING]
    return {field: written[key] for key, field in _SAMPLING.items() if key in written}


def _first(value: object) -> str | None:
    """A path, which older versions write as a list of one."""
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) and first else None


FORMAT = Format(
    "koboldcpp",
    "koboldcpp settings, .kcpps",
    named_file(".kcpps"),
    render,
    has_comments=False,
    recognises=is_koboldcpp,
    read=read,
)
