"""Fields of a preset as settings of other programs: one row writes a field and reads it back.

A field is named as in a preset, with its table: `n_ctx`, `sampling.top_k`, `draft.model`.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from engine.configuration import Configuration, PredictorName, TensorOverride
from engine.model.ggml import TYPES_BY_NAME
from engine.presets.export import Imported, ImportedFileError
from engine.validation import explain, explain_faults

if TYPE_CHECKING:
    from engine.presets.preset import Preset

Fields = dict[str, Any]
Drafter = Literal["head", "lookup", "draft"]
"""A source of drafts in another program: the model's MTP head, n-gram lookup, a draft model."""
ALL_LAYERS = 999
"""All layers, for programs that have no word for it."""
HEAD_DRAFT = 3
"""Tokens that llama.cpp drafts by default."""
_INSTEAD = {
    PredictorName.LOOKUP: "its n-gram lookup",
    PredictorName.DRAFT: "the draft model",
    PredictorName.COMBINED: "its n-gram lookup and the draft model",
}
_DEVICE = re.compile(r"\A(?:CUDA|Vulkan|ROCm|SYCL|HIP|MUSA|CANN|Metal|MTL)(\d+)\Z")


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A field of a preset and the key that a program has for it."""

    field: str
    key: str
    write: Callable[[Any], object] = lambda value: value
    read: Callable[[Any], object] = lambda value: value


def write_rows(table: Iterable[FieldRow], configuration: Configuration) -> Fields:
    """The values of a program's keys; a field that is not set is left out."""
    values = settings_of(configuration)
    return {
        row.key: row.write(values[row.field])
        for row in table
        if values.get(row.field) not in (None, ())
    }


def read_rows(table: Iterable[FieldRow], given: Fields) -> Fields:
    """Fields from a program's keys, which are removed; unreadable values stay."""
    found: Fields = {}
    for row in table:
        if given.get(row.key) is None:
            continue
        try:
            found[row.field] = row.read(given[row.key])
        except (AttributeError, TypeError, ValueError, LookupError, OverflowError):
            continue
        del given[row.key]
    return found


def settings_of(configuration: Configuration) -> Fields:
    """The fields of a preset with the values of a configuration."""
    draft, mmproj = configuration.draft, configuration.mmproj_path
    return flat({
        **configuration.shared_fields(),
        "model": str(configuration.model_path),
        "n_ctx": configuration.n_ctx,
        "type_k": configuration.type_k,
        "type_v": configuration.type_v,
        "n_gpu_layers": _layers(configuration.n_gpu_layers),
        "n_cpu_moe": _layers(configuration.n_cpu_moe),
        "mmproj": None if mmproj is None else str(mmproj),
        "lora": tuple(adapter.text for adapter in configuration.adapters),
        "sampling": asdict(configuration.sampling),
        "speculation": asdict(configuration.speculation),
        "draft": {} if draft is None else {
            "model": str(draft.model_path), "n_gpu_layers": _layers(draft.n_gpu_layers),
            "type_k": draft.type_k, "type_v": draft.type_v,
        },
    })  # fmt: skip


def flat(data: Mapping[str, Any]) -> Fields:
    """Fields of nested tables."""
    found: Fields = {}
    for name, value in data.items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": each for key, each in value.items()}
        else:
            found[name] = value
    return found


def nested(fields: Fields) -> Fields:
    """The tables of fields."""
    found: Fields = {}
    for name, value in fields.items():
        table, _, key = name.rpartition(".")
        (found.setdefault(table, {}) if table else found)[key] = value
    return found


def imported(
    found: Fields,
    source: str,
    left_out: Iterable[str],
    notes: Iterable[str] = (),
    *,
    written: Mapping[str, str] | None = None,
) -> Imported:
    """The preset of fields; values that it cannot hold are also left out, each with the reason.

    `name` may be any text; `written` has fields as the program's text has them.
    """
    from pydantic import ValidationError  # `kvchat plan` starts without pydantic

    from engine.presets.preset import Preset

    data, all_left_out = {**found, "name": preset_name(str(found["name"]))}, [*left_out]
    while True:
        try:
            preset = Preset.model_validate(nested(data))
            return Imported(preset, source, tuple(all_left_out), tuple(notes))
        except ValidationError as error:
            faults = list(explain(error, Preset))
        refused: dict[str, str] = {}
        for where, reason in faults:
            exact = data.keys() & {".".join(where[:2]), where[0]} - {"name"}
            within = (name for name in data if name.startswith(f"{where[0]}."))
            refused |= dict.fromkeys(exact or within, reason)
        if not refused:
            raise ImportedFileError(f"{source} is not a preset: {explain_faults(faults)}")
        for name, reason in refused.items():
            text = (written or {}).get(name)
            all_left_out.append(f"{text} ({name}{reason})" if text else f"{name}{reason}")
            del data[name]


def listed(given: Fields) -> list[str]:
    """The keys of a program that no field was read from; those that are null are not listed."""
    return [
        f"{key} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in given.items()
        if value is not None
    ]


def preset_name(name: str) -> str:
    """A text as a name that presets can have."""
    allowed = "".join(c if c.isalnum() or c in "_ .+-" else "-" for c in name)
    return allowed.lstrip(" .+-")[:60] or "imported"


def file_stem(path: str) -> str:
    """Name of a model by its file, on any system."""
    return re.split(r"[/\\]", path)[-1].removesuffix(".gguf")


def layers_from(value: object) -> int | str:
    """Layers on the GPU: -1 or `auto`; -2, `all` or a number from `ALL_LAYERS` on; a number."""
    text = str(value).lower()
    if text in ("auto", "all"):
        return text
    count = int(text)
    return "all" if count == -2 or count >= ALL_LAYERS else "auto" if count < 0 else count


def draft_layers(value: object) -> int | str:
    """Layers of a draft model, for which llama.cpp's `auto` is all."""
    return "all" if (layers := layers_from(value)) == "auto" else layers


def layers_number(value: int | str) -> int:
    """A number of layers for a program that has no word for all."""
    return ALL_LAYERS if value == "all" else int(value)


def number_text(value: float) -> str:
    """A number without `.0`."""
    return str(int(value)) if value == int(value) else repr(value)


def overrides_from(text: str) -> list[Fields]:
    """Tensor overrides from llama.cpp's `pattern=device,pattern=device`."""
    pairs = [part.rpartition("=") for part in text.split(",") if part]
    return [{"pattern": left, "device": _DEVICE.sub(r"GPU \1", right)} for left, _, right in pairs]


def override_text(override: TensorOverride) -> str:
    """`pattern=device`, with devices as CUDA builds name them: `GPU 1` is CUDA1."""
    device = re.sub(r"\AGPU (?=.)", "CUDA", override.device)
    return f"{override.pattern}={device}"


def drafters(configuration: Configuration, *offered: Drafter) -> tuple[Drafter, ...]:
    """Drafting methods to use in a program that has these; an MTP head replaces a draft model."""
    speculation = configuration.speculation
    has_head = configuration.n_mtp_draft > 0 and "head" in offered
    drafts = speculation.predictor in (PredictorName.DRAFT, PredictorName.COMBINED)
    found: dict[Drafter, bool] = {
        "head": has_head,
        "lookup": speculation.drafts_from_text,
        "draft": drafts and configuration.draft is not None and not has_head,
    }
    return tuple(name for name, is_used in found.items() if is_used and name in offered)


def one_type(configuration: Configuration, offered: Collection[str]) -> str:
    """The smallest offered K/V type with as many bits as keys and values have."""
    wanted = max(configuration.type_k, configuration.type_v, key=_bits)
    enough = [name for name in offered if _bits(name) >= _bits(wanted)]
    if wanted in offered:
        return wanted
    return min(enough, key=_bits) if enough else max(offered, key=_bits)


def differences(
    configuration: Configuration, found: "Preset", program: str, skipped: Collection[str] = ()
) -> Iterator[str]:
    """Each setting that a program lacks or gets with another value.

    `found` is the preset that an import of the export gives; fields of `skipped` are not compared.
    """
    from engine.presets.library import preset_of

    before = flat(preset_of(configuration, found.name).model_dump())
    after, given = flat(found.model_dump()), flat(found.model_dump(exclude_unset=True))
    for name in _compared(before, after):
        table, _, field = name.rpartition(".")
        if before[name] != after.get(name) and field not in skipped:
            what = f"gets {_text(after.get(name))}" if name in given else "has no setting for it"
            start = "the draft's " if table == "draft" else ""
            yield f"{start}{field} is {_text(before[name])}: {program} {what}"
    yield from _drafting(configuration, after, program)


def _compared(before: Fields, after: Fields) -> Iterator[str]:
    unused = {"name", "model", "draft", *(() if before["mmproj"] else ("mmproj_offload",))}
    tables = {"", "sampling"}
    if "draft.model" in before and "draft.model" in after:
        tables.add("draft")
        lengths = ("n_draft", "draft_min_tokens", "draft_min_confidence")
        key, n_draft = "speculation.draft_min_tokens", before["speculation.n_draft"]
        before[key], after[key] = (min(each[key], n_draft) for each in (before, after))
        yield from (f"speculation.{name}" for name in lengths)
    for name in before:
        if name.rpartition(".")[0] in tables and name not in {*unused, "draft.model"}:
            yield name


def _drafting(configuration: Configuration, after: Fields, program: str) -> Iterator[str]:
    speculation, draft = configuration.speculation, configuration.draft
    predictor = PredictorName(after["speculation.predictor"])
    if predictor != speculation.predictor:
        head = "the model's MTP head" if after["n_mtp_draft"] else None
        gets = "does not support it and decodes without speculation"
        if instead := _INSTEAD.get(predictor, head):
            gets = f"uses {instead} instead"
        yield f"the predictor is {speculation.predictor}: {program} {gets}"
    if draft is not None and "draft.model" not in after:
        yield f"the draft model {draft.model_path.name} is left out: {program} does not use it"
    if predictor not in _INSTEAD:
        return
    length = after["speculation.n_draft"]
    if predictor is not PredictorName.DRAFT and after["speculation.controller"] != "fixed":
        length = max(after["speculation.n_draft_max"], after["speculation.lookup_pattern_min"])
    if speculation.controller != "fixed" or length > speculation.n_draft:
        yield (
            f"{program} drafts up to {length} tokens in every round (the preset has the controller "
            f"{speculation.controller} with n_draft {speculation.n_draft})"
        )


def _layers(n_layers: int) -> int | str:
    return "all" if n_layers < 0 else n_layers


def _bits(name: str) -> float:
    return TYPES_BY_NAME[name].bits


def _text(value: object) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case {"pattern": pattern, "device": device}:
            return f"{pattern}={device}"
        case tuple():
            return ", ".join(map(_text, value)) or "none"
        case float():
            return f"{value:g}"
        case None:
            return "not set"
        case _:
            return str(value) or "none"
