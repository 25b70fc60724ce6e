"""From what a llama-server was given to the rules of a preset.

What was not given has llama-server's default, said in the preset where kvchat's is another one
(llama.cpp b11434, `common/common.h`).
"""

import re

from pydantic import ValidationError

from engine.errors import shown
from engine.presets.importing.given import Given, is_on
from engine.presets.importing.imported import Imported, ImportedFileError
from engine.presets.importing.reading import ALL_LAYERS, Data, Reading, finite, kv_type, layers
from engine.presets.importing.speculation import read_speculation
from engine.presets.preset import MOST_FAULTS, Preset

DEFAULT_SLOTS = 4
DEFAULT_SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
_DEVICE = re.compile(r"(?:CUDA|Vulkan|ROCm|SYCL|HIP|MUSA|CANN|Metal|MTL)(\d+)")


def preset_from(given: Given, name: str, source: str) -> Imported:
    """Give the preset that resolves to what a llama-server was given.

    Raises:
        ImportedFileError: nothing in it means anything to a preset, or the values contradict each
            other.
    """
    reading = Reading(given, {"name": name}, list(given.left_out))
    if not given.values and not given.adapters:
        raise ImportedFileError(f"{source} sets nothing that a preset has: {_listed(given)}")
    _read_context(reading)
    _read_cache(reading)
    _read_placement(reading)
    _read_companions(reading)
    _read_sampling(reading)
    read_speculation(reading)
    return Imported(
        validated(reading.data, source), source, tuple(reading.left_out), tuple(reading.notes)
    )


def validated(data: Data, source: str) -> Preset:
    """Give a preset of rules, its name made one that presets can have.

    Raises:
        ImportedFileError: a value is out of range; all of them are named.
    """
    try:
        return Preset.model_validate({**data, "name": _preset_name(str(data["name"]))})
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))} is {shown(fault['input'])}: {fault['msg'].lower()}"
            for fault in error.errors(include_url=False)[:MOST_FAULTS]
        )
        raise ImportedFileError(f"{source} makes no preset: {faults}") from error


def _preset_name(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "_ .+-" else "-" for c in name)
    return kept.lstrip(" .+-")[:60] or "imported"


def _read_context(reading: Reading) -> None:
    if (model := reading.text("model")) is not None:
        reading.data["model"] = model
    n_ctx = reading.count("n_ctx")
    if n_ctx:
        reading.data["n_ctx"] = n_ctx
    else:
        reading.data["n_ctx"] = "max"
        reading.notes.append(
            "no context is given: llama-server takes the model's own and shortens it to fit, as "
            "n_ctx = max does"
        )
    n_batch = _at_least_one(reading, "n_batch", "--batch-size", 2048)
    n_ubatch = _at_least_one(reading, "n_ubatch", "--ubatch-size", 512)
    reading.data["n_batch"] = n_batch
    reading.data["n_ubatch"] = min(n_ubatch, n_batch)
    _read_slots(reading)
    n_threads = reading.count("n_threads")
    if n_threads is not None and n_threads > 0:
        reading.data["n_threads"] = n_threads


def _at_least_one(reading: Reading, key: str, flag: str, default: int) -> int:
    count = reading.count(key)
    if count is not None and count < 1:
        reading.left_out.append(f"{flag} {count} (kvchat takes 1 or more)")
        return default
    return default if count is None else count


def _read_slots(reading: Reading) -> None:
    n_slots = reading.count("n_slots")
    unified = reading.text("kv_unified")
    if n_slots is not None and n_slots > 0:
        reading.data["n_slots"] = n_slots
        reading.data["kv_unified"] = unified is not None and is_on(unified)
        return
    reading.data["n_slots"] = DEFAULT_SLOTS
    reading.data["kv_unified"] = unified is None or is_on(unified)
    reading.notes.append(
        f"no --parallel is given: llama-server opens {DEFAULT_SLOTS} slots that share their cells"
    )


def _read_cache(reading: Reading) -> None:
    for key in ("type_k", "type_v"):
        flag = f"--cache-type-{key[-1]}"
        reading.data[key] = kv_type(reading.text(key), flag, reading.left_out)
    flash = (reading.text("flash_attention") or "auto").lower()
    is_auto = flash in ("auto", "-1")
    reading.data["flash_attention"] = "auto" if is_auto else "on" if is_on(flash) else "off"
    reading.data["swa_full"] = is_on(reading.text("swa_full") or "off")


def _read_placement(reading: Reading) -> None:
    data = reading.data
    data["n_gpu_layers"] = layers(reading, "n_gpu_layers", "auto")
    fit = reading.text("fit")
    if (
        fit is not None
        and is_on(fit)
        and (data["n_ctx"] == "max" or data["n_gpu_layers"] == "auto")
    ):
        reading.notes.append("--fit is on: kvchat's own rules decide what is left open")
    mode = reading.text("split_mode")
    if mode in ("none", "layer"):
        data["split_mode"] = mode
    elif mode is not None:
        reading.left_out.append(f"--split-mode {mode} (kvchat plans layer and none)")
    if main_gpu := reading.count("main_gpu"):
        data["main_gpu"] = main_gpu
    if split := reading.text("tensor_split"):
        data["tensor_split"] = _shares(split, reading)
    data["offload_kqv"] = is_on(reading.text("offload_kqv") or "on")
    data["use_extra_buffers"] = is_on(reading.text("use_extra_buffers") or "on")
    _read_experts(reading)


def _read_experts(reading: Reading) -> None:
    n_cpu_moe = reading.count("n_cpu_moe")
    if is_on(reading.text("cpu_moe") or "off") or (n_cpu_moe or 0) >= ALL_LAYERS:
        reading.data["n_cpu_moe"] = "all"
    elif n_cpu_moe:
        reading.data["n_cpu_moe"] = n_cpu_moe
    written = reading.text("tensor_overrides")
    if written is not None:
        rules = [read_override(part, reading.left_out) for part in written.split(",")]
        reading.data["tensor_overrides"] = [rule for rule in rules if rule is not None]


def read_override(part: str, left_out: list[str]) -> Data | None:
    """The rule of `pattern=device`; what is none is listed."""
    pattern, equals, device = part.partition("=")
    if not (pattern and equals and device):
        left_out.append(f"--override-tensor {part}")
        return None
    match = _DEVICE.fullmatch(device)
    return {"pattern": pattern, "device": f"GPU {match[1]}" if match else device}


def _shares(written: str, reading: Reading) -> list[float]:
    shares = [finite(share) for share in re.split(r"[,/]+", written)]
    numbers = [share for share in shares if share is not None]
    if len(numbers) < len(shares):
        reading.left_out.append(f"--tensor-split {written} (not numbers)")
        return []
    return numbers


def _read_companions(reading: Reading) -> None:
    if (mmproj := reading.text("mmproj")) is not None:
        reading.data["mmproj"] = mmproj
        reading.data["mmproj_offload"] = is_on(reading.text("mmproj_offload") or "on")
    adapters = [path for value in reading.given.adapters for path in _csv_fields(value)]
    if adapters:
        reading.data["lora"] = adapters


def _csv_fields(value: str) -> list[str]:
    """Split a value at commas outside double quotes, as llama.cpp's `parse_csv_row` does."""
    fields, current, is_quoted = [], "", False
    index = 0
    while index < len(value):
        character = value[index]
        if character == '"' and is_quoted and value[index + 1 : index + 2] == '"':
            current, index = current + '"', index + 1
        elif character == '"' and (is_quoted or not current):
            is_quoted = not is_quoted
        elif character == "," and not is_quoted:
            fields.append(current)
            current = ""
        else:
            current += character
        index += 1
    return [*fields, current]


def _read_sampling(reading: Reading) -> None:
    sampling: Data = dict(DEFAULT_SAMPLING)
    for key in ("temperature", "top_p", "min_p", "repetition_penalty"):
        if (value := reading.share(key)) is not None:
            sampling[key] = value
    for key in ("top_k", "repetition_window"):
        if (count := reading.count(key)) is not None:
            sampling[key] = max(count, 0)
    reading.data["sampling"] = sampling


def _listed(given: Given) -> str:
    return ", ".join(given.left_out) or "it is empty"
