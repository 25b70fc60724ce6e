"""Settings of koboldcpp as a preset: a `.kcpps` is the JSON of its options (1.102 to 1.117.1)."""

import json
import re
from collections.abc import Mapping

from engine.parsing import parse_json
from engine.presets.importing.imported import Imported
from engine.presets.importing.reading import ALL_LAYERS, Data, kv_type, whole
from engine.presets.importing.rules import read_override, validated

SOURCE = "settings of koboldcpp"
MARKS = frozenset({"model_param", "contextsize", "gpulayers", "quantkv"})
DEFAULT_N_CTX = 8192
QUANT_KV = ("f16", "q8_0", "q4_0")
"""KV types by the numbers that every version knows."""
_COUNTS = {"contextsize": "n_ctx", "threads": "n_threads"}
_SAMPLING = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "rep_pen": "repetition_penalty", "rep_pen_range": "repetition_window",
}  # fmt: skip
_NO_NEWS = frozenset({"skiplauncher"})


def looks_like_koboldcpp(data: Mapping[str, object]) -> bool:
    """Whether a JSON object has options of koboldcpp."""
    return bool(MARKS & data.keys())


def read_koboldcpp(data: Mapping[str, object], name: str | None) -> Imported:
    """The preset of koboldcpp's options; those that are off or empty are no news.

    Raises:
        ImportedFileError: a value is out of range.
    """
    given = {key: value for key, value in data.items() if key not in _NO_NEWS}
    left_out: list[str] = []
    model = _first(given.pop("model_param", None) or given.pop("model", None))
    rules: Data = {
        **({} if model is None else {"model": model}),
        "n_ctx": DEFAULT_N_CTX,
        **_counts(given),
        **_cache(given, left_out),
        **_placement(given, left_out),
        **_companions(given),
        **_drafts(given),
        "sampling": _sampling(given, left_out),
    }
    left_out += [
        f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in given.items() if value
    ]
    title = name or re.split(r"[/\\]", model or SOURCE)[-1].removesuffix(".gguf")
    return Imported(validated({"name": title, **rules}, SOURCE), SOURCE, tuple(left_out))


def _counts(given: dict[str, object]) -> Data:
    found: Data = {
        rule: count
        for key, rule in _COUNTS.items()
        if (count := _count(given.pop(key, None))) is not None and count > 0
    }
    for key in ("batchsize", "blasbatchsize"):
        n_batch = _count(given.pop(key, None))
        if n_batch is not None and n_batch > 0:
            found["n_batch"] = found["n_ubatch"] = n_batch
    return found


def _cache(given: dict[str, object], left_out: list[str]) -> Data:
    quant = given.pop("quantkv", 0)
    index = _count(quant)
    known = index is not None and 0 <= index < len(QUANT_KV)
    kv = QUANT_KV[index] if known and index is not None else str(quant)
    kind = kv_type(kv, "quantkv", left_out)
    without, with_ = given.pop("noflashattention", None), given.pop("flashattention", None)
    is_off = bool(without) if without is not None else with_ is False
    is_said = without is not None or with_ is not None
    whole, window = given.pop("noswa", None), given.pop("useswa", None)
    return {
        "type_k": kind,
        "type_v": kind,
        "flash_attention": "off" if is_off else "on" if is_said else "auto",
        "swa_full": bool(whole) if whole is not None else window is False,
        "offload_kqv": not given.pop("lowvram", False),
    }


def _placement(given: dict[str, object], left_out: list[str]) -> Data:
    n_layers = _count(given.pop("gpulayers", None))
    rules: Data = {"n_gpu_layers": "auto" if n_layers is None else _layers(n_layers)}
    if given.pop("usecpu", False):
        rules["n_gpu_layers"] = 0
    words = given.pop("usecuda", None) or given.pop("usecublas", None)
    cards = [card for word in _list(words) if (card := whole(str(word))) is not None and card >= 0]
    main_gpu = _count(given.pop("maingpu", None))
    if main_gpu is not None and main_gpu >= 0:
        rules["main_gpu"] = main_gpu
    if cards:
        rules.update(split_mode="none", main_gpu=cards[0])
    if split := given.pop("tensor_split", None):
        rules["tensor_split"] = split
    n_experts = _count(given.pop("moecpu", None)) or 0
    rules["n_cpu_moe"] = "all" if n_experts >= ALL_LAYERS else max(n_experts, 0)
    written = str(given.pop("overridetensors", None) or "")
    overrides = [read_override(part, left_out) for part in written.split(",") if part]
    rules["tensor_overrides"] = [rule for rule in overrides if rule is not None]
    return rules


def _companions(given: dict[str, object]) -> Data:
    rules: Data = {}
    if projector := given.pop("mmproj", None):
        rules["mmproj"] = projector
        rules["mmproj_offload"] = not given.pop("mmprojcpu", False)
    if adapters := given.pop("lora", None):
        rules["lora"] = _list(adapters) or [adapters]
    return rules


def _drafts(given: dict[str, object]) -> Data:
    rules: Data = {"speculation": {"predictor": "off"}}
    length = _count(given.pop("draftamount", None))
    if given.pop("usemtp", False):
        rules["n_mtp_draft"] = length or 3
    n_layers = _count(given.pop("draftgpulayers", None))
    draft = _first(given.pop("draftmodel", None))
    if draft is not None:
        on_gpu = "all" if n_layers is None else _layers(n_layers)
        rules["draft"] = {"model": draft, "n_gpu_layers": "all" if on_gpu == "auto" else on_gpu}
        rules["speculation"] = {"predictor": "draft", **({"n_draft": length} if length else {})}
    return rules


def _sampling(given: dict[str, object], left_out: list[str]) -> Data:
    """The defaults of its API, which are JSON within the JSON."""
    written = given.pop("gendefaults", None)
    if isinstance(written, str) and written:
        try:
            written = parse_json(written)
        except ValueError:
            left_out.append(f"gendefaults = {written}")
    if not isinstance(written, dict):
        return {}
    left_out += [f"gendefaults {key} = {written[key]}" for key in written if key not in _SAMPLING]
    return {rule: written[key] for key, rule in _SAMPLING.items() if key in written}


def _layers(n_layers: int) -> int | str:
    return "auto" if n_layers < 0 else "all" if n_layers >= ALL_LAYERS else n_layers


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _first(value: object) -> str | None:
    """A path, which older versions write as a list of one."""
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) and first else None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
