"""llama-server: a configuration as its arguments, and its arguments as a preset.

Every planned value is written, even defaults, so that nothing depends on `--fit` or on a changed
default. A flag that is absent has llama-server's default in the preset. Values that llama-server
would split raise `ExportError`, texts without a setting `ImportedFileError`.
"""

import csv
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal

from engine.configuration import MAX_DRAFT, Adapter, Configuration, TensorOverride
from engine.grammar.source import LARK_SUFFIX
from engine.presets import fields
from engine.presets.command import UNSET
from engine.presets.export import ExportError, ExportRequest, Imported, ImportedFileError, writable
from engine.presets.fields import Fields

PROGRAM = "llama-server"
BUILDS = "llama.cpp from May 2026 on (checked with b11434 and commit 0c1e57098)"
"""Builds that have the flags; of those written, none differs in llama.cpp v1.0.0."""
DEFAULT_SLOTS = 4
LOOKUP, DRAFT, HEAD = "ngram-simple", "draft-simple", "draft-mtp"
LOOKUPS: Mapping[str, tuple[int, int]] = {
    LOOKUP: (12, 48), "ngram-map-k": (12, 48), "ngram-map-k4v": (12, 48), "ngram-mod": (24, 64),
    "ngram-cache": (4, 8),
}  # fmt: skip
"""Types of `--spec-type` that draft from the text: default pattern and draft length."""
_VALUE = re.compile(r"[^-]|-\d+(\.\d+)?\Z|\Z")
"""Pattern of a value after an unknown flag."""
_CHOICES = frozenset({"on", "off", "auto", "1", "0", "-1", "true", "false", "enabled", "disabled"})
_OFF = frozenset({"off", "0", "false", "disabled"})


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting of llama-server with its names, environment variables among them."""

    key: str
    """Field of a preset, or a setting that becomes a field together with others."""
    names: str
    """The first is written."""
    off: str = ""
    """Names that switch it off."""
    takes: Literal["value", "switch", "maybe"] = "value"
    """Whether it needs a value, is a switch, or needs a value in newer builds only."""
    read: Callable[[str], Any] = str

    def has_value(self, name: str) -> bool:
        """Whether a value follows one of its names."""
        return self.takes != "switch" and name not in self.off.split()

    def words(self, text: str) -> tuple[str, ...]:
        """The words of a command line that give the setting a value."""
        if self.takes == "switch":
            return ((self.names if is_on(text) else self.off).split()[0],)
        return (self.names.split()[0], text)


def is_on(text: str) -> bool:
    """Whether a value switches something on."""
    return text.lower() not in _OFF


def _adapters(text: str) -> list[str]:
    """Split at commas outside double quotes, as llama.cpp's `parse_csv_row` does."""
    try:
        return [each.removesuffix(":1") for each in next(csv.reader([text]))]
    except csv.Error as error:
        raise ImportedFileError(f"--lora cannot be split at its commas: {error}") from error


FLAGS: tuple[Flag, ...] = (
    Flag("model", "--model -m LLAMA_ARG_MODEL"),
    Flag("n_ctx", "--ctx-size -c LLAMA_ARG_CTX_SIZE"),
    Flag("n_batch", "--batch-size -b LLAMA_ARG_BATCH"),
    Flag("n_ubatch", "--ubatch-size -ub LLAMA_ARG_UBATCH"),
    Flag("n_slots", "--parallel -np LLAMA_ARG_N_PARALLEL"),
    Flag("kv_unified", "--kv-unified -kvu LLAMA_ARG_KV_UNIFIED", takes="switch",
          off="--no-kv-unified -no-kvu"),
    Flag("type_k", "--cache-type-k -ctk LLAMA_ARG_CACHE_TYPE_K", read=str.lower),
    Flag("type_v", "--cache-type-v -ctv LLAMA_ARG_CACHE_TYPE_V", read=str.lower),
    Flag("flash_attention", "--flash-attn -fa LLAMA_ARG_FLASH_ATTN", takes="maybe",
          off="--no-flash-attn -no-fa",
          read=lambda text: "auto" if text.lower() in ("auto", "-1")
          else "on" if is_on(text) else "off"),
    Flag("swa_full", "--swa-full LLAMA_ARG_SWA_FULL", takes="switch"),
    Flag("n_threads", "--threads -t LLAMA_ARG_THREADS"),
    Flag("n_threads_batch", "--threads-batch -tb"),
    Flag("n_gpu_layers", "--n-gpu-layers -ngl --gpu-layers LLAMA_ARG_N_GPU_LAYERS",
          read=fields.layers_from),
    Flag("fit", "--fit -fit LLAMA_ARG_FIT", takes="maybe"),
    Flag("split_mode", "--split-mode -sm LLAMA_ARG_SPLIT_MODE"),
    Flag("main_gpu", "--main-gpu -mg LLAMA_ARG_MAIN_GPU"),
    Flag("tensor_split", "--tensor-split -ts LLAMA_ARG_TENSOR_SPLIT",
          read=lambda text: re.split("[,/]+", text)),
    Flag("rpc_workers", "--rpc LLAMA_ARG_RPC", read=lambda text: re.split(r"\s*,\s*", text)),
    Flag("tensor_overrides", "--override-tensor -ot LLAMA_ARG_OVERRIDE_TENSOR",
          read=fields.overrides_from),
    Flag("cpu_moe", "--cpu-moe -cmoe LLAMA_ARG_CPU_MOE", takes="switch"),
    Flag("n_cpu_moe", "--n-cpu-moe -ncmoe LLAMA_ARG_N_CPU_MOE", read=fields.layers_from),
    Flag("offload_kqv", "--kv-offload -kvo LLAMA_ARG_KV_OFFLOAD", takes="switch",
          off="--no-kv-offload -nkvo LLAMA_ARG_NO_KV_OFFLOAD"),
    Flag("use_extra_buffers", "--repack LLAMA_ARG_REPACK", takes="switch",
          off="--no-repack -nr LLAMA_ARG_NO_REPACK"),
    Flag("load_mode", "--load-mode -lm LLAMA_ARG_LOAD_MODE"),
    Flag("use_mmap", "--mmap LLAMA_ARG_MMAP", takes="switch",  # gone since b10875: read only
          off="--no-mmap LLAMA_ARG_NO_MMAP"),
    Flag("mmproj", "--mmproj -mm LLAMA_ARG_MMPROJ"),
    Flag("mmproj_offload", "--mmproj-offload LLAMA_ARG_MMPROJ_OFFLOAD", takes="switch",
          off="--no-mmproj-offload LLAMA_ARG_NO_MMPROJ_OFFLOAD"),
    Flag("lora", "--lora", read=_adapters),
    Flag("lora_scaled", "--lora-scaled", read=_adapters),
    Flag("sampling.temperature", "--temp --temperature LLAMA_ARG_TEMPERATURE"),
    Flag("sampling.top_k", "--top-k LLAMA_ARG_TOP_K", read=lambda text: max(int(text), 0)),
    Flag("sampling.top_p", "--top-p LLAMA_ARG_TOP_P"),
    Flag("sampling.min_p", "--min-p LLAMA_ARG_MIN_P"),
    Flag("sampling.repetition_penalty", "--repeat-penalty LLAMA_ARG_REPEAT_PENALTY"),
    Flag("sampling.repetition_window", "--repeat-last-n"),
    Flag("sampling.json_schema", "--json-schema-file -jf"),
    Flag("sampling.grammar", "--grammar-file"),
    Flag("spec_type", "--spec-type LLAMA_ARG_SPEC_TYPE"),
    Flag("spec_default", "--spec-default", takes="switch"),
    Flag("draft.model", "--model-draft -md --spec-draft-model LLAMA_ARG_SPEC_DRAFT_MODEL "
          "LLAMA_ARG_MODEL_DRAFT"),
    Flag("speculation.n_draft", "--spec-draft-n-max LLAMA_ARG_SPEC_DRAFT_N_MAX"),
    Flag("speculation.draft_min_tokens", "--spec-draft-n-min LLAMA_ARG_SPEC_DRAFT_N_MIN"),
    Flag("speculation.draft_min_confidence", "--spec-draft-p-min --draft-p-min "
         "LLAMA_ARG_SPEC_DRAFT_P_MIN LLAMA_ARG_DRAFT_P_MIN"),
    Flag("draft.n_gpu_layers", "--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft "
          "LLAMA_ARG_N_GPU_LAYERS_DRAFT", read=fields.draft_layers),
    Flag("draft.type_k", "--spec-draft-type-k -ctkd --cache-type-k-draft "
          "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K", read=str.lower),
    Flag("draft.type_v", "--spec-draft-type-v -ctvd --cache-type-v-draft "
          "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V", read=str.lower),
    *(
        Flag(f"{kind} {end}", f"--spec-{kind}-{name}")
        for kind, names in {
            **dict.fromkeys((LOOKUP, "ngram-map-k", "ngram-map-k4v"), ("size-n", "size-m")),
            "ngram-mod": ("n-match", "n-max"),
        }.items()
        for end, name in zip("nm", names, strict=True)
    ),
)  # fmt: skip
"""Every flag that a preset has a field for, in the order in which they are written."""

_BY_KEY = {flag.key: flag for flag in FLAGS}
_BY_NAME = {name: flag for flag in FLAGS for name in f"{flag.names} {flag.off}".split()}
_USUAL = fields.settings_of(Configuration(Path("model.gguf"), 0))
_ALWAYS = (
    "model", "n_ctx", "n_batch", "n_ubatch", "n_slots", "type_k", "type_v", "flash_attention",
    "n_gpu_layers", "sampling.temperature", "sampling.top_k", "sampling.top_p", "sampling.min_p",
    "sampling.repetition_penalty", "sampling.repetition_window",
)  # fmt: skip
"""Written even if kvchat's default: llama-server's default may differ."""
_DEFAULTS: Fields = {
    "n_ctx": "max", "n_batch": 2048, "n_ubatch": 512, "n_slots": DEFAULT_SLOTS, "kv_unified": True,
    "type_k": "f16", "type_v": "f16", "n_gpu_layers": "auto", "sampling.temperature": 0.8,
    "sampling.top_k": 40, "sampling.top_p": 0.95, "sampling.min_p": 0.05,
    "speculation.predictor": "off",
}  # fmt: skip
"""llama-server's defaults (`common/common.h`)."""


# --- from a configuration to words ---


def options(configuration: Configuration) -> list[tuple[str, ...]]:
    """The flags of a llama-server that runs a configuration, each with its value."""
    texts = _texts(configuration) | _draft_texts(configuration)
    return [flag.words(texts[flag.key]) for flag in FLAGS if flag.key in texts]


def arguments(configuration: Configuration) -> list[str]:
    """The arguments after the program's name."""
    return [word for words in options(configuration) for word in words]


def serving(
    request: ExportRequest, *, host: str | None = None, has_address: bool = True
) -> list[str]:
    """Program and arguments with the address to listen on, the port last."""
    if re.match(r"-|\w+\+?=|$", request.program):
        raise ExportError(
            f"{request.program!r} cannot be started by a shell: write the full path of llama-server"
        )
    address = ["--host", host or request.host, "--port", str(request.port)]
    words = [request.program, *arguments(request.configuration), *(address if has_address else [])]
    return list(map(writable, words))


def differences(request: ExportRequest) -> tuple[str, ...]:
    """Differences between llama-server and kvchat: setting, value and consequence."""
    configuration = request.configuration
    found = read_words([PROGRAM, *arguments(configuration)]).preset
    return (*fields.differences(configuration, found, PROGRAM), *_conditions(request))


def _conditions(request: ExportRequest) -> Iterator[str]:
    """Conditions under which llama-server follows the plan."""
    configuration, model = request.configuration, request.model
    grammar, n_mtp_draft = configuration.sampling.grammar, configuration.n_mtp_draft
    if n_mtp_draft and model is not None and not model.architecture.head_layers:
        yield (
            f"n_mtp_draft is {n_mtp_draft}, but the model has no MTP head, so llama-server "
            "would not start: set n_mtp_draft to 0"
        )
    if grammar.endswith(LARK_SUFFIX):
        yield (
            f"grammar is {grammar}: {PROGRAM} reads Lark only if it was built with "
            "LLGUIDANCE and the first line is %llguidance {}"
        )
    if any(override.device.startswith("GPU ") for override in configuration.tensor_overrides):
        yield (
            "the tensor overrides use the GPU names of CUDA builds (CUDA0): write Vulkan0 or "
            "ROCm0 for other builds"
        )


def _texts(configuration: Configuration) -> dict[str, str]:
    """The text of each written flag, except speculation."""
    values = fields.settings_of(configuration)
    texts = {"fit": "off"} | {
        key: _text(values[key])
        for key in _BY_KEY.keys() & _USUAL.keys()
        if key not in ("lora", "use_mmap") and not key.startswith("speculation.")
        and (key in _ALWAYS or values[key] != _USUAL[key])
    }  # fmt: skip
    if texts.get("n_cpu_moe") == "all":
        texts["cpu_moe"] = texts.pop("n_cpu_moe")
    if not configuration.use_mmap:
        texts["load_mode"] = "none"
    if configuration.mmproj_path is None:
        texts.pop("mmproj_offload", None)
    if adapters := configuration.adapters:
        is_scaled = any(each.scale != 1.0 for each in adapters)
        written = [_scaled(each) if is_scaled else str(each.path) for each in adapters]
        texts["lora_scaled" if is_scaled else "lora"] = ",".join(map(_csv_field, written))
    return texts


def _draft_texts(configuration: Configuration) -> dict[str, str]:
    """Types chained by a comma; the MTP head and a draft model share one length."""
    values = fields.settings_of(configuration)
    drafting = fields.drafters(configuration, "head", "lookup", "draft")
    names = {"head": HEAD, "lookup": LOOKUP, "draft": DRAFT}
    texts = {"spec_type": ",".join(names[each] for each in drafting) or "none"}
    n_draft, least = values["speculation.n_draft"], values["speculation.draft_min_tokens"]
    if "lookup" in drafting:
        texts[f"{LOOKUP} n"] = _text(values["speculation.lookup_pattern_min"])
        texts[f"{LOOKUP} m"] = _text(configuration.speculation.n_draft_of_server)
    if "head" in drafting:
        texts["speculation.n_draft"] = _text(configuration.n_mtp_draft)
    if "draft" in drafting:
        values["speculation.draft_min_tokens"] = min(least, n_draft)
        keys = [key for key in _BY_KEY if key.startswith(("draft.", "speculation."))]
        texts |= {key: _text(values[key]) for key in keys}
    return texts


def _text(value: object) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case float():
            return fields.number_text(value)
        case tuple():
            return ",".join(map(_text, value))
        case TensorOverride():
            return fields.override_text(value)
        case _:
            return str(value)


def _scaled(adapter: Adapter) -> str:
    """`FILE:SCALE`, which llama-server splits at every colon."""
    if ":" in str(adapter.path):
        raise ExportError(
            f"the adapter {adapter.path} has a colon in its path, after which llama-server "
            "expects the scale: rename the file, or link to it under another name"
        )
    return f"{adapter.path}:{_text(adapter.scale)}"


def _csv_field(path: str) -> str:
    return path if "," not in path and path[0] != '"' else '"' + path.replace('"', '""') + '"'


# --- from words to a preset ---


def read_words(
    words: Sequence[str], environment: Mapping[str, str] | None = None, name: str | None = None
) -> Imported:
    """The preset of a command in words, with or without its program; arguments win over variables.

    `UNSET` marks a word with an unknown variable; the preset's name is by default the model's.
    """
    index = server_index(words)
    flags = (number for number, word in enumerate(words) if word.startswith("-"))
    first = next(flags, len(words)) if index is None else index + 1
    local = dict(word.split("=", 1) for word in words[:first] if re.match(r"LLAMA_\w+=", word))
    given = _Given()
    for variable, text in {**(environment or {}), **local}.items():
        if variable.startswith("LLAMA_"):
            given.add(variable, text, f"{variable}={text}")
    rest = deque(words[first:])
    while rest:
        given.add_next(rest)
    return given.imported(name, "a llama-server command line")


def read_pairs(pairs: Iterable[tuple[str, str]], name: str, source: str) -> Imported:
    """The preset of a router's INI section: flags without dashes, or environment variables."""
    given = _Given()
    for key, text in pairs:
        names = [each for each in (key, f"--{key}", f"-{key}") if each in _BY_NAME]
        given.add([*names, key][0], text, f"{key} = {text}")
    return given.imported(name, source)


def starts_server(words: Sequence[str]) -> bool:
    """Whether a command starts a llama-server with flags."""
    index = server_index(words)
    return index is not None and any(word.startswith("-") for word in words[index:])


def server_index(words: Sequence[str]) -> int | None:
    """Index of the server's name: the program, its subcommand, or a container's image."""
    for index, word in enumerate(words):
        name = PurePath(word).name.removesuffix(".exe") if "llama" in word else ""
        if name == "llama" and [*words, ""][index + 1] in ("serve", "server"):
            return index + 1
        if name.endswith("server") or re.search(r"llama\.cpp:(?:server|full)", word):
            return index
    return None


@dataclass(slots=True)
class _Given:
    """The flags that a llama-server was started with; reading a flag removes it."""

    texts: dict[str, str] = field(default_factory=dict)
    """By key; a switch is `on` or `off`."""
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_next(self, rest: deque[str]) -> None:
        """Add the next flag of a command with its value."""
        word = rest.popleft()
        name, equals, text = word.partition("=")
        flag = _BY_NAME.get(name) if word.startswith("-") else None
        if equals and flag is not None and flag.has_value(name):
            rest.appendleft(text)
        else:
            name, flag = word, _BY_NAME.get(word) if word.startswith("-") else None
        if flag is None:
            is_flag = word.startswith("-") and not equals
            text = f" {rest.popleft()}" if is_flag and rest and _VALUE.match(rest[0]) else ""
            self.left_out.append(_shown(word + text))
        elif not flag.has_value(name):
            self.add(name, "on")
        elif flag.takes == "maybe":
            has_value = bool(rest) and (rest[0].lower() in _CHOICES or UNSET in rest[0])
            self.add(name, rest.popleft() if has_value else "on")
        elif rest:
            self.add(name, rest.popleft())
        else:
            self.left_out.append(f"{name} (without a value)")

    def add(self, name: str, text: str, written: str = "") -> None:
        """Add a flag by one of its names; the later of two counts, but some add up."""
        flag = _BY_NAME.get(name)
        if flag is None or UNSET in text:
            why = "" if flag is None else " (a variable that the text does not set)"
            self.left_out.append(_shown(written or f"{name} {text}") + why)
        elif flag.key in ("lora", "lora_scaled", "tensor_overrides") and flag.key in self.texts:
            self.texts[flag.key] += f",{text}"
        elif flag.has_value(name):
            self.texts[flag.key] = text
        else:
            self.texts[flag.key] = "on" if is_on(text) != (name in flag.off.split()) else "off"

    def imported(self, name: str | None, source: str) -> Imported:
        """The preset that resolves to what a llama-server was started with."""
        if not self.texts:
            listed = ", ".join(self.left_out) or "nothing"
            raise ImportedFileError(
                f"{source} contains no setting that a preset can hold; found: {listed}"
            )
        written = {key: " ".join(_BY_KEY[key].words(text)) for key, text in self.texts.items()}
        name = name or fields.file_stem(self.texts.get("model", PROGRAM)) or PROGRAM
        found: Fields = {"name": name, **_DEFAULTS, **self._combined(), **self._drafting()}
        known = _USUAL.keys() | {"lora_scaled"}
        self._read(
            [key for key in self.texts if key in known and key[:12] != "speculation."], found
        )
        sizes = [str(found[key]) for key in ("n_batch", "n_ubatch")]
        if all(re.fullmatch("[1-9][0-9]{,9}", size) for size in sizes):
            found["n_ubatch"] = min(map(int, sizes))
        left_out = [*self.left_out, *(written[key] for key in self.texts)]
        return fields.imported(found, source, left_out, self.notes, written=written)

    def _read(self, keys: Iterable[str], found: Fields) -> None:
        """Move flags into the fields; one that cannot be read stays."""
        for key in keys:
            try:
                value = _BY_KEY[key].read(self.texts[key])
            except ValueError:
                continue
            name = "lora" if key == "lora_scaled" else key
            found[name] = [*found["lora"], *value] if name == "lora" in found else value
            del self.texts[key]

    def _combined(self) -> Fields:
        """Fields that several flags set together."""
        found: Fields = {}
        texts = self.texts
        texts.pop("fit", None)
        if (n_ctx := texts.get("n_ctx")) in (None, "0"):
            texts.pop("n_ctx", None)
            how = "no context size is given" if n_ctx is None else "the given context size is 0"
            self.notes.append(
                f"{how}: llama-server then uses the model's training context, reduced "
                "to fit in memory, like n_ctx = max"
            )
        if texts.get("n_slots", "-1").startswith("-"):
            texts.pop("n_slots", None)
            self.notes.append(
                f"--parallel is not given: llama-server opens {DEFAULT_SLOTS} slots "
                "that share one cache"
            )
        else:
            found["kv_unified"] = False
        for key in ("n_threads", "n_threads_batch"):
            if re.fullmatch("-[0-9]+|0", texts.get(key, "")):
                del texts[key]
        if is_on(texts.pop("cpu_moe", "off")):
            texts["n_cpu_moe"] = str(fields.ALL_LAYERS)
        if texts.get("load_mode") in ("auto", "mmap", "none"):
            found["use_mmap"] = texts.pop("load_mode") != "none"
        if "mmproj" not in texts:
            texts.pop("mmproj_offload", None)
        return found

    def _drafting(self) -> Fields:
        """The fields of speculation, for the types that kvchat has."""
        texts = self.texts
        types = [each for each in texts.pop("spec_type", "").replace("_", "-").split(",") if each]
        if is_on(texts.pop("spec_default", "off")):
            types = types or ["ngram-mod"]
        if not types and "draft.model" in texts:
            types = [DRAFT]
            self.notes.append(
                "the command has no --spec-type, so llama-server from May 2026 on ignores "
                "its draft model; the preset uses the draft model"
            )
        lookup = next((each for each in types if each in LOOKUPS), None)
        drafts = DRAFT in types and "draft.model" in texts
        known = {lookup, HEAD, "none", DRAFT if drafts else None}
        self.left_out += [f"--spec-type {each}" for each in types if each not in known]
        found: Fields = {}
        if drafts or HEAD in types:
            n_draft = self._length("speculation.n_draft", fields.HEAD_DRAFT)
            found |= {"n_mtp_draft": n_draft} if HEAD in types else {}
        if drafts:
            found |= {
                "speculation.predictor": "draft",
                "speculation.n_draft": n_draft,
                "speculation.n_draft_max": max(n_draft, _USUAL["speculation.n_draft_max"]),
                "speculation.draft_min_confidence": 0,
            }
            self._read([key for key in texts if key.startswith(("draft.", "speculation."))], found)
        return found if lookup is None else self._lookup(lookup, found)

    def _lookup(self, kind: str, found: Fields) -> Fields:
        """The fields with a lookup; with a draft model it becomes `combined`."""
        pattern, default = LOOKUPS[kind]
        length = self._length(f"{kind} m", default)
        if kind != LOOKUP:
            self.notes.append(f"--spec-type {kind} becomes the predictor lookup")
        pattern = self._count(f"{kind} n", pattern)
        drafts = "speculation.predictor" in found
        return {
            "speculation.n_draft": min(_USUAL["speculation.n_draft"], length),
            **found,
            "speculation.predictor": "combined" if drafts else "lookup",
            "speculation.lookup_pattern_min": pattern,
            "speculation.lookup_pattern_max": max(pattern, 16),
            "speculation.n_draft_max": max(length, found.get("speculation.n_draft", 1)),
        }

    def _length(self, key: str, default: int) -> int:
        length = self._count(key, default)
        if length > MAX_DRAFT:
            self.notes.append(
                f"the draft length of {length} is reduced to {MAX_DRAFT}, kvchat's maximum"
            )
        return max(1, min(length, MAX_DRAFT))

    def _count(self, key: str, default: int) -> int:
        """The number of a flag; a text that is no number stays."""
        is_number = re.fullmatch("[0-9]{1,10}", self.texts.get(key, ""))
        return int(self.texts.pop(key)) if is_number else default


def _shown(text: str) -> str:
    return text.replace(UNSET, "")
