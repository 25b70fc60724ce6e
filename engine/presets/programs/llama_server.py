"""llama-server: a configuration as its arguments, and its arguments as a preset.

Every value that was planned with is said, `--parallel` among them, so that nothing is left to
`--fit` or to a default that changed. What was not given to a server has llama-server's default,
said in the preset where kvchat's is another one (llama.cpp b11434, `common/common.h`).
"""

import csv
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path, PurePath

from engine.configuration import WORKER, Adapter, Configuration, SamplingSettings, TensorOverride
from engine.grammar.source import LARK_SUFFIX
from engine.model.architecture import Model
from engine.presets.programs.base import (
    Exported,
    ExportError,
    ExportRequest,
    Format,
    Imported,
    ImportedFileError,
    named_file,
    number,
    writable,
)
from engine.presets.programs.flags import (
    BUILDS,
    FLAGS,
    Given,
    Option,
    given_words,
    is_on,
    layers_word,
    option,
)
from engine.presets.programs.llama_server_drafts import (
    draft_pairs,
    draft_remarks,
    read_drafts,
)
from engine.presets.programs.remarks import differences
from engine.presets.programs.rules import (
    ALL_LAYERS,
    Data,
    Reading,
    device_name,
    file_stem,
    finite,
    kv_type,
    override_rule,
    validate_preset,
)

PROGRAM = "llama-server"
SUBCOMMANDS = ("serve", "server")
"""`llama serve` is llama-server under llama.cpp's one binary."""
DEFAULT_SLOTS = 4
UNMAPPED = "none"
LOAD_MODES = ("auto", "mmap", UNMAPPED)
"""Values of `--load-mode` that a preset can say."""
DEFAULT_SAMPLING: Data = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}

ALWAYS_SAID = (
    "n_ctx", "n_batch", "n_ubatch", "n_slots", "type_k", "type_v", "flash_attention",
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "repetition_window",
)  # fmt: skip
"""What stands in a command though it is as usual: llama-server's own default may be another."""
OTHER_WORDS = (
    "n_gpu_layers", "tensor_split", "tensor_overrides", "n_cpu_moe", "use_mmap", "mmproj_offload",
    "cpu_moe", "rpc_workers",
)  # fmt: skip
"""Settings that one option cannot say with the value that a preset has."""
AS_THEY_ARE = [flag for flag in FLAGS if flag.key not in OTHER_WORDS]

_USUAL = Configuration(Path("model.gguf"), 0)
_ORDER = {flag.key: index for index, flag in enumerate(FLAGS)}

_NO_PROGRAM = re.compile(r"-|\w+\+?=|$")
_IMAGE = re.compile(r"llama\.cpp:(?:server|full)")
_ASSIGNMENT = re.compile(r"LLAMA_\w+=.*", re.DOTALL)

Pair = tuple[str, str]
"""A setting by its key in the table of flags, and its value as it is written."""


def arguments(configuration: Configuration) -> list[str]:
    """The arguments behind the program's name.

    Raises:
        ExportError: a pattern of tensors that llama-server would cut apart.
    """
    return [word for each in options(configuration) for word in each.words]


def command_line(configuration: Configuration) -> str:
    """The whole command, quoted for a POSIX shell; raises as `arguments` does."""
    return shlex.join([PROGRAM, *arguments(configuration)])


def options(configuration: Configuration) -> tuple[Option, ...]:
    """The options of a llama-server that runs a configuration, in a fixed order.

    Raises:
        ExportError: a pattern of tensors that llama-server would cut apart.
    """
    pairs = (
        *_as_they_are(configuration, _USUAL),
        *_as_they_are(configuration.sampling, _USUAL.sampling),
        *_placement(configuration),
        *_companions(configuration),
    )
    in_order = sorted(pairs, key=lambda pair: _ORDER[pair[0]])
    in_order += draft_pairs(configuration)
    return tuple(option(key, value) for key, value in in_order)


def remarks(configuration: Configuration, model: Model | None = None) -> list[str]:
    """What llama-server does otherwise than kvchat: setting, value, and what happens."""
    return list(_remarks(configuration, model))


def serving(request: ExportRequest, *, host: str | None = None) -> list[str]:
    """Program and arguments with the address to listen on, the port last.

    Raises:
        ExportError: no program, a path that cannot be written, a pattern that would be cut apart.
    """
    address = ["--host", writable(host or request.host), "--port", str(request.port)]
    return [*_command(request), *address]


def heading(
    request: ExportRequest, remarks: tuple[str, ...], *, start: str | None = None
) -> tuple[str, ...]:
    """The lines that a commented format starts with; `start` is how the file is used."""
    return (
        f"{request.name}, planned by kvchat for {BUILDS}",
        *(() if start is None else (f"start: {start}",)),
        *remarks,
        *request.warnings,
    )


def request_remarks(request: ExportRequest) -> tuple[str, ...]:
    """The remarks of a request that a llama-server will run."""
    return tuple(remarks(request.configuration, request.model))


def render(request: ExportRequest) -> Exported:
    """The command on one line.

    Raises:
        ExportError: no program, a path that cannot be written, a pattern that would be cut apart.
    """
    return Exported(shlex.join(_command(request)) + "\n", request_remarks(request))


def read_words(
    words: Sequence[str],
    name: str | None,
    environment: Mapping[str, str] | None = None,
    unset: Set[str] = frozenset(),
) -> Imported:
    """The preset of a command in words, its program first or left out.

    Args:
        words: The command.
        name: What the preset is called; None takes the model's name.
        environment: The variables that the command is started with.
        unset: Words and values with variables that nothing sets, which are listed.

    Raises:
        ImportedFileError: none of its flags means anything to a preset.
    """
    before = words[: _server_index(words) or 0]
    local = dict(word.split("=", 1) for word in before if _ASSIGNMENT.fullmatch(word))
    given = given_words(_arguments(words), {**(environment or {}), **local}, unset)
    called = name or file_stem(given.values.get("model", PROGRAM)) or PROGRAM
    return preset_from(given, called, "a llama-server command line")


def preset_from(given: Given, name: str, source: str) -> Imported:
    """The preset that resolves to what a llama-server was given.

    Raises:
        ImportedFileError: nothing in it means anything to a preset, or the values contradict each
            other.
    """
    if not given.values and not given.adapters:
        listed = ", ".join(given.left_out) or "it is empty"
        raise ImportedFileError(f"{source} sets no field of a preset: {listed}")
    reading = Reading(given, {"name": name}, list(given.left_out))
    for read in _READERS:
        read(reading)
    reading.left_out += (flag.written(given.values[flag.key]) for flag in reading.unread())
    preset = validate_preset(reading.data, source)
    return Imported(preset, source, tuple(reading.left_out), tuple(reading.notes))


def is_server(program: str) -> bool:
    """Whether a word is llama-server's name."""
    return _server_index((program,)) is not None


def starts_server(words: Sequence[str]) -> bool:
    """Whether a command starts a llama-server with flags."""
    index = _server_index(words)
    return index is not None and any(word.startswith("-") for word in words[index:])


# --- from a configuration to pairs ---


def _command(request: ExportRequest) -> list[str]:
    if _NO_PROGRAM.match(request.program):
        raise ExportError(
            f"{request.program!r} cannot be started by a shell: write the whole path of "
            "llama-server"
        )
    words = [request.program, *arguments(request.configuration)]
    return list(map(writable, words))


def _as_they_are(
    settings: Configuration | SamplingSettings, usual: Configuration | SamplingSettings
) -> Iterator[Pair]:
    """The settings whose values need no other words, under the names of their flags."""
    for key in (each.key for each in AS_THEY_ARE if hasattr(settings, each.key)):
        value: object = getattr(settings, key)
        if key in ALWAYS_SAID or value != getattr(usual, key):
            yield key, _spelled(value)


def _spelled(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return number(value) if isinstance(value, int | float) else str(value)


def _placement(configuration: Configuration) -> Iterator[Pair]:
    yield "n_gpu_layers", layers_word(configuration.n_gpu_layers)
    yield "fit", "off"
    if configuration.tensor_split:
        yield "tensor_split", ",".join(map(number, configuration.tensor_split))
    if configuration.rpc_workers:
        yield "rpc_workers", ",".join(configuration.rpc_workers)
    if configuration.tensor_overrides:
        yield "tensor_overrides", ",".join(map(_override, configuration.tensor_overrides))
    if configuration.n_cpu_moe < 0:
        yield "cpu_moe", "on"
    elif configuration.n_cpu_moe:
        yield "n_cpu_moe", str(configuration.n_cpu_moe)
    if not configuration.use_mmap:
        yield "load_mode", UNMAPPED


def _companions(configuration: Configuration) -> Iterator[Pair]:
    yield "model", str(configuration.model_path)
    if configuration.mmproj_path is not None:
        yield "mmproj", str(configuration.mmproj_path)
        if not configuration.mmproj_offload:
            yield "mmproj_offload", "off"
    is_scaled = any(adapter.scale != 1.0 for adapter in configuration.adapters)
    key = "lora_scaled" if is_scaled else "lora"
    adapters = [_scaled(each) if is_scaled else str(each.path) for each in configuration.adapters]
    if adapters:
        yield key, ",".join(map(_csv_field, adapters))


def _override(override: TensorOverride) -> str:
    """`pattern=device` with the device as CUDA builds call it.

    llama-server splits the whole value at commas and each part at its first `=`.
    """
    pattern = override.pattern
    bad = [character for character in ",=" if character in pattern]
    if bad:
        raise ExportError(
            f"the tensor pattern {pattern!r} has {bad[0]!r}, where llama-server splits "
            "its overrides: write `.` (any character) instead"
        )
    return f"{pattern}={device_name(override.device)}"


def _scaled(adapter: Adapter) -> str:
    """`FILE:SCALE`, which llama-server cuts at every colon."""
    if ":" in str(adapter.path):
        raise ExportError(
            f"the adapter {adapter.path} has a colon in its path, where llama-server reads "
            "the scale: rename it, or link it under another name"
        )
    return f"{adapter.path}:{number(adapter.scale)}"


def _csv_field(path: str) -> str:
    """Quote a path for `--lora`, whose values are split at commas outside double quotes."""
    if "," not in path and not path.startswith('"'):
        return path
    return '"' + path.replace('"', '""') + '"'


# --- what does not arrive ---


def _remarks(configuration: Configuration, model: Model | None) -> Iterator[str]:
    found = preset_from(given_words(arguments(configuration)), PROGRAM, PROGRAM).preset
    yield from differences(configuration, found, PROGRAM)
    yield from draft_remarks(configuration, model)
    if configuration.sampling.grammar.endswith(LARK_SUFFIX):
        yield (
            f"grammar is {configuration.sampling.grammar}: {PROGRAM} reads Lark only if it "
            "was built with LLGUIDANCE, and after a first line %llguidance {}"
        )
    if configuration.rpc_workers:
        yield (
            f"the workers {', '.join(configuration.rpc_workers)} must be started first, and "
            "llama-server must be built with -DGGML_RPC=ON: `kvchat plan` prints the commands"
        )
    if any(override.device.startswith("GPU ") for override in configuration.tensor_overrides):
        yield (
            "the tensor overrides use the GPU names of CUDA builds (CUDA0): write Vulkan0 or "
            "ROCm0 for other builds"
        )
    has_tokenizer = model is not None and model.file.text("tokenizer.ggml.model") is not None
    if model is not None and has_tokenizer and model.file.chat_template is None:
        yield "the model has no chat template: llama-server will guess one"


# --- from what was given to rules ---


def _arguments(words: Sequence[str]) -> list[str]:
    """What follows the server's name, or from the first flag on where it is left out."""
    index = _server_index(words)
    if index is not None:
        return list(words[index + 1 :])
    flag = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[flag:])


def _server_index(words: Sequence[str]) -> int | None:
    """Index of the server's name: the program, its subcommand, or a container's image."""
    for index, word in enumerate(words):
        if "llama" not in word:
            continue
        name = PurePath(word).name.removesuffix(".exe")
        if name == "llama" and words[index + 1 : index + 2] and words[index + 1] in SUBCOMMANDS:
            return index + 1
        if _IMAGE.search(word) or ("llama" in name and name.endswith("server")):
            return index
    return None


def _read_context(reading: Reading) -> None:
    if (model := reading.text("model")) is not None:
        reading.data["model"] = model
    n_ctx = reading.count("n_ctx")
    reading.data["n_ctx"] = n_ctx or "max"
    if not n_ctx:
        given = "no context is given" if n_ctx is None else "the context given is 0"
        reading.notes.append(
            f"{given}: llama-server takes the model's own and shortens it to fit, as n_ctx = max "
            "does"
        )
    n_batch = _at_least_one(reading, "n_batch", "--batch-size", 2048)
    n_ubatch = _at_least_one(reading, "n_ubatch", "--ubatch-size", 512)
    reading.data.update(n_batch=n_batch, n_ubatch=min(n_ubatch, n_batch))
    for key in ("n_threads", "n_threads_batch"):
        n_threads = reading.count(key)
        if n_threads is not None and n_threads > 0:
            reading.data[key] = n_threads


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
        f"no --parallel is given: llama-server opens {DEFAULT_SLOTS} slots that share one cache"
    )


def _read_cache(reading: Reading) -> None:
    for key in ("type_k", "type_v"):
        flag = f"--cache-type-{key[-1]}"
        reading.data[key] = kv_type(reading.text(key), flag, reading.left_out)
    flash = (reading.text("flash_attention") or "auto").lower()
    is_auto = flash in ("auto", "-1")
    reading.data["flash_attention"] = "auto" if is_auto else "on" if is_on(flash) else "off"
    for each in AS_THEY_ARE:
        if each.takes == "switch" and (text := reading.text(each.key)) is not None:
            reading.data[each.key] = is_on(text)


def _read_placement(reading: Reading) -> None:
    data = reading.data
    data["n_gpu_layers"] = reading.layers("n_gpu_layers", "auto")
    is_open = data["n_ctx"] == "max" or data["n_gpu_layers"] == "auto"
    if is_on(reading.text("fit") or "off") and is_open:
        reading.notes.append("--fit is on: kvchat chooses the values that are left open")
    mode = reading.text("split_mode")
    if mode in ("none", "layer"):
        data["split_mode"] = mode
    elif mode is not None:
        reading.left_out.append(f"--split-mode {mode} (kvchat plans layer and none)")
    if main_gpu := reading.count("main_gpu"):
        data["main_gpu"] = main_gpu
    if split := reading.text("tensor_split"):
        data["tensor_split"] = _shares(split, reading)
    if workers := reading.text("rpc_workers"):
        data["rpc_workers"] = _workers(workers, reading)
    mode = reading.text("load_mode")
    data["use_mmap"] = is_on(reading.text("use_mmap") or "on") and mode != UNMAPPED
    if mode not in (None, *LOAD_MODES):
        reading.left_out.append(f"--load-mode {mode} (kvchat maps the file, or reads it)")


def _read_experts(reading: Reading) -> None:
    n_cpu_moe = reading.count("n_cpu_moe")
    if is_on(reading.text("cpu_moe") or "off") or (n_cpu_moe or 0) >= ALL_LAYERS:
        reading.data["n_cpu_moe"] = "all"
    elif n_cpu_moe:
        reading.data["n_cpu_moe"] = n_cpu_moe
    written = reading.text("tensor_overrides")
    if written is not None:
        rules = [override_rule(part, reading.left_out) for part in written.split(",")]
        reading.data["tensor_overrides"] = [rule for rule in rules if rule is not None]


def _shares(written: str, reading: Reading) -> list[float]:
    shares = [finite(share) for share in re.split(r"[,/]+", written)]
    numbers = [share for share in shares if share is not None]
    if len(numbers) < len(shares):
        reading.left_out.append(f"--tensor-split {written} (not numbers)")
        return []
    return numbers


def _workers(written: str, reading: Reading) -> list[str]:
    found = [each.strip() for each in written.split(",")]
    bad = [each for each in found if re.fullmatch(WORKER, each) is None]
    reading.left_out += [f"--rpc {each} (no host:port)" for each in bad]
    return [each for each in found if each not in bad]


def _read_companions(reading: Reading) -> None:
    if (mmproj := reading.text("mmproj")) is not None:
        reading.data["mmproj"] = mmproj
        reading.data["mmproj_offload"] = is_on(reading.text("mmproj_offload") or "on")
    adapters = [
        each.removesuffix(":1")  # the scale that an adapter has by itself
        for value in reading.given.adapters
        for each in _csv_fields(value)
    ]
    if adapters:
        reading.data["lora"] = adapters


def _csv_fields(value: str) -> list[str]:
    """Split a value at commas outside double quotes, as llama.cpp's `parse_csv_row` does."""
    try:
        return next(csv.reader([value]))
    except csv.Error as error:
        raise ImportedFileError(f"--lora cannot be split at its commas: {error}") from error


def _read_sampling(reading: Reading) -> None:
    sampling: Data = dict(DEFAULT_SAMPLING)
    for key, usual in asdict(_USUAL.sampling).items():
        match usual:
            case float():
                value: object = reading.share(key)
            case int():
                count = reading.count(key)
                value = None if count is None else max(count, 0)
            case _:
                value = reading.text(key)
        if value is not None:
            sampling[key] = value
    reading.data["sampling"] = sampling


_READERS: tuple[Callable[[Reading], None], ...] = (
    _read_context,
    _read_slots,
    _read_cache,
    _read_placement,
    _read_experts,
    _read_companions,
    _read_sampling,
    read_drafts,
)

FORMAT = Format(
    "llama-server",
    "llama-server on the command line",
    named_file(".txt"),
    render,
    has_comments=False,
    starts_server=True,
)
