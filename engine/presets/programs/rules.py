"""Values of other programs as rules of a preset."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, get_args

from engine.configuration import MOST_COUNT, KVTypeName
from engine.presets.programs.base import ImportedFileError
from engine.presets.programs.flags import FLAGS, Flag, Given
from engine.validation import explain, explain_faults

if TYPE_CHECKING:
    from engine.presets.preset import Preset

ALL_LAYERS = 999
"""More layers than any model has: what programs without a word for all of them are given."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,10}")
_DEVICE = re.compile(r"(?:CUDA|Vulkan|ROCm|SYCL|HIP|MUSA|CANN|Metal|MTL)(\d+)")

Data = dict[str, object]
Number = TypeVar("Number", int, float)


@dataclass(slots=True)
class Reading:
    """The preset that grows out of what a llama-server was given."""

    given: Given
    data: Data = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _read: set[str] = field(default_factory=set)

    def text(self, key: str) -> str | None:
        """What was written for a key."""
        self._read.add(key)
        return self.given.values.get(key)

    def unread(self) -> Iterator[Flag]:
        """The flags that were given and have no place in this preset."""
        return (flag for flag in FLAGS if flag.key in self.given.values.keys() - self._read)

    def count(self, key: str) -> int | None:
        """A whole number; what is none is listed."""
        return self._number(key, whole)

    def share(self, key: str) -> float | None:
        """A number; what is none is listed."""
        return self._number(key, finite)

    def layers(self, key: str, default: str) -> int | str:
        """A number of layers, `all`, or the default where it is open."""
        written = (self.text(key) or default).lower()
        if written in ("auto", "all"):
            return default if written == "auto" else written
        count = self.count(key)
        if count is None or count == -1:
            return default
        return "all" if count < 0 else layers_rule(count)

    def _number(self, key: str, read: Callable[[str], Number | None]) -> Number | None:
        written = self.text(key)
        if written is None:
            return None
        found = read(written)
        if found is None:
            self.left_out.append(f"{key} {written} (not a number)")
        return found


def validate_preset(data: Data, source: str) -> "Preset":
    """The preset of rules, its name made one that presets can have.

    Raises:
        ImportedFileError: a value is out of range; all of them are named.
    """
    from pydantic import ValidationError  # an export alone goes without

    from engine.presets.preset import Preset

    try:
        return Preset.model_validate({**data, "name": _preset_name(str(data["name"]))})
    except ValidationError as error:
        faults = explain_faults(explain(error, Preset))
        raise ImportedFileError(f"{source} is not a preset: {faults}") from error


def file_stem(path: str) -> str:
    """Name of a model by its file, on any system."""
    return re.split(r"[/\\]", path)[-1].removesuffix(".gguf")


def whole(written: str) -> int | None:
    """A whole number that a preset may have; None where it is none."""
    count = int(written) if _WHOLE.fullmatch(written.strip()) else None
    return count if count is not None and abs(count) <= MOST_COUNT else None


def finite(written: str) -> float | None:
    """A number that a preset may have; None where it is none."""
    try:
        share = float(written)
    except ValueError:
        return None
    return share if abs(share) <= MOST_COUNT else None


def whole_number(value: object) -> int | None:
    """A whole number of JSON; None where it is anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def kv_type(written: str | None, what: str, left_out: list[str]) -> str:
    """A KV type; one that kvchat does not know is listed, and f16 taken."""
    known = get_args(KVTypeName)
    if written is None or written.lower() in known:
        return "f16" if written is None else written.lower()
    left_out.append(f"{what} {written} (kvchat knows {', '.join(known)}; f16 is used)")
    return "f16"


def layers_rule(n_layers: int) -> int | str:
    """Layers on the GPU as a preset says them: those below 0 are left open."""
    return "auto" if n_layers < 0 else "all" if n_layers >= ALL_LAYERS else n_layers


def layers_written(n_layers: int) -> int:
    """Layers as a program takes them that has no word for all."""
    return ALL_LAYERS if n_layers < 0 else n_layers


def override_rule(part: str, left_out: list[str]) -> Data | None:
    """The rule of `pattern=device`; what is none is listed."""
    pattern, equals, device = part.partition("=")
    if not (pattern and equals and device):
        left_out.append(f"--override-tensor {part}")
        return None
    match = _DEVICE.fullmatch(device)
    return {"pattern": pattern, "device": f"GPU {match[1]}" if match else device}


def device_name(device: str) -> str:
    """The name that a CUDA build has for a device: `GPU 1` is CUDA1."""
    word, _, index = device.partition(" ")
    return f"CUDA{index}" if word == "GPU" and index else device


def as_list(value: object) -> list[object]:
    """A list of JSON; empty where it is anything else."""
    return value if isinstance(value, list) else []


def _preset_name(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "_ .+-" else "-" for c in name)
    return kept.lstrip(" .+-")[:60] or "imported"
