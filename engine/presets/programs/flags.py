"""The flags of llama-server: one table for what is written and for what is read.

Names are those of llama.cpp b11434 (`common/arg.cpp`), from May 2026 on.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

Takes = Literal["value", "switch", "maybe"]
"""Whether a flag takes a value, is a switch, or takes a value in newer builds only."""

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_CHOICES = frozenset({"on", "off", "auto", "1", "0", "-1", "true", "false", "enabled", "disabled"})
_OFF = frozenset({"off", "0", "false", "disabled"})


@dataclass(frozen=True, slots=True)
class Option:
    """One long option, without its dashes."""

    name: str
    value: str | None = None
    """None where the option is said by its name alone."""

    @property
    def words(self) -> tuple[str, ...]:
        """The option as words of a command line."""
        flag = f"--{self.name}"
        return (flag,) if self.value is None else (flag, self.value)


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting of llama-server under all names that it had, environment variables among them.

    The first of `names` is the one that is written.
    """

    key: str
    """What it sets; a switch is `on` or `off`."""
    takes: Takes
    names: tuple[str, ...]
    off_names: tuple[str, ...] = ()

    def written(self, value: str) -> str:
        """The flag with a value, for a person."""
        if self.takes != "switch":
            return f"{self.names[0]} {value}"
        return self.names[0] if is_on(value) else self.off_names[0]


BUILDS = "llama.cpp from May 2026 on (checked with b11434 and commit 0c1e57098)"
"""Builds of llama-server that take the flags, for a person."""
ALL_LAYERS = "all"
"""Value of `--n-gpu-layers` that is all of them."""


def option(key: str, value: str) -> Option:
    """The option that gives a setting a value; a switch is `on` or `off`."""
    flag = _BY_KEY[key]
    if flag.takes != "switch":
        return Option(flag.names[0].removeprefix("--"), value)
    return Option((flag.names[0] if is_on(value) else flag.off_names[0]).removeprefix("--"))


def layers_word(n_layers: int) -> str:
    """A number of layers, or the word for all of them."""
    return ALL_LAYERS if n_layers < 0 else str(n_layers)


def _flag(key: str, names: str, *, takes: Takes = "value", off: str = "") -> Flag:
    return Flag(key, takes, tuple(names.split()), tuple(off.split()))


FLAGS: tuple[Flag, ...] = (
    _flag("model", "--model -m LLAMA_ARG_MODEL"),
    _flag("n_ctx", "--ctx-size -c LLAMA_ARG_CTX_SIZE"),
    _flag("n_batch", "--batch-size -b LLAMA_ARG_BATCH"),
    _flag("n_ubatch", "--ubatch-size -ub LLAMA_ARG_UBATCH"),
    _flag("n_slots", "--parallel -np LLAMA_ARG_N_PARALLEL"),
    _flag("kv_unified", "--kv-unified -kvu LLAMA_ARG_KV_UNIFIED", takes="switch",
          off="--no-kv-unified -no-kvu"),
    _flag("type_k", "--cache-type-k -ctk LLAMA_ARG_CACHE_TYPE_K"),
    _flag("type_v", "--cache-type-v -ctv LLAMA_ARG_CACHE_TYPE_V"),
    _flag("flash_attention", "--flash-attn -fa LLAMA_ARG_FLASH_ATTN", takes="maybe",
          off="--no-flash-attn -no-fa"),
    _flag("swa_full", "--swa-full LLAMA_ARG_SWA_FULL", takes="switch"),
    _flag("n_threads", "--threads -t LLAMA_ARG_THREADS"),
    _flag("n_threads_batch", "--threads-batch -tb"),
    _flag("n_gpu_layers", "--n-gpu-layers -ngl --gpu-layers LLAMA_ARG_N_GPU_LAYERS"),
    _flag("fit", "--fit -fit LLAMA_ARG_FIT", takes="maybe"),
    _flag("split_mode", "--split-mode -sm LLAMA_ARG_SPLIT_MODE"),
    _flag("main_gpu", "--main-gpu -mg LLAMA_ARG_MAIN_GPU"),
    _flag("tensor_split", "--tensor-split -ts LLAMA_ARG_TENSOR_SPLIT"),
    _flag("rpc_workers", "--rpc LLAMA_ARG_RPC"),
    _flag("tensor_overrides", "--override-tensor -ot LLAMA_ARG_OVERRIDE_TENSOR"),
    _flag("cpu_moe", "--cpu-moe -cmoe LLAMA_ARG_CPU_MOE", takes="switch"),
    _flag("n_cpu_moe", "--n-cpu-moe -ncmoe LLAMA_ARG_N_CPU_MOE"),
    _flag("offload_kqv", "--kv-offload -kvo LLAMA_ARG_KV_OFFLOAD", takes="switch",
          off="--no-kv-offload -nkvo LLAMA_ARG_NO_KV_OFFLOAD"),
    _flag("use_extra_buffers", "--repack LLAMA_ARG_REPACK", takes="switch",
          off="--no-repack -nr LLAMA_ARG_NO_REPACK"),
    _flag("load_mode", "--load-mode -lm LLAMA_ARG_LOAD_MODE"),
    _flag("use_mmap", "--mmap LLAMA_ARG_MMAP", takes="switch",
          off="--no-mmap LLAMA_ARG_NO_MMAP"),
    _flag("mmproj", "--mmproj -mm LLAMA_ARG_MMPROJ"),
    _flag("mmproj_offload", "--mmproj-offload LLAMA_ARG_MMPROJ_OFFLOAD", takes="switch",
          off="--no-mmproj-offload LLAMA_ARG_NO_MMPROJ_OFFLOAD"),
    _flag("lora", "--lora"),
    _flag("lora_scaled", "--lora-scaled"),
    _flag("temperature", "--temp --temperature LLAMA_ARG_TEMPERATURE"),
    _flag("top_k", "--top-k LLAMA_ARG_TOP_K"),
    _flag("top_p", "--top-p LLAMA_ARG_TOP_P"),
    _flag("min_p", "--min-p LLAMA_ARG_MIN_P"),
    _flag("repetition_penalty", "--repeat-penalty LLAMA_ARG_REPEAT_PENALTY"),
    _flag("repetition_window", "--repeat-last-n"),
    _flag("json_schema", "--json-schema-file -jf"),
    _flag("grammar", "--grammar-file"),
    _flag("spec_type", "--spec-type LLAMA_ARG_SPEC_TYPE"),
    _flag("draft_model", "--model-draft -md --spec-draft-model LLAMA_ARG_SPEC_DRAFT_MODEL "
          "LLAMA_ARG_MODEL_DRAFT"),
    _flag("draft_max", "--spec-draft-n-max LLAMA_ARG_SPEC_DRAFT_N_MAX"),
    _flag("draft_min", "--spec-draft-n-min LLAMA_ARG_SPEC_DRAFT_N_MIN"),
    _flag("draft_p_min", "--spec-draft-p-min --draft-p-min LLAMA_ARG_SPEC_DRAFT_P_MIN "
          "LLAMA_ARG_DRAFT_P_MIN"),
    _flag("draft_layers", "--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft "
          "LLAMA_ARG_N_GPU_LAYERS_DRAFT"),
    _flag("draft_type_k", "--spec-draft-type-k -ctkd --cache-type-k-draft "
          "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K"),
    _flag("draft_type_v", "--spec-draft-type-v -ctvd --cache-type-v-draft "
          "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V"),
    _flag("lookup_n", "--spec-ngram-simple-size-n"),
    _flag("lookup_m", "--spec-ngram-simple-size-m"),
)  # fmt: skip
"""Every flag that a preset has a field for, in the order in which they are written."""

APPENDED = ("tensor_overrides",)
"""Flags that may be repeated: their values add up."""
_BY_KEY = {flag.key: flag for flag in FLAGS}
_BY_NAME = {name: flag for flag in FLAGS for name in (*flag.names, *flag.off_names)}


@dataclass(slots=True)
class Given:
    """What a llama-server was given, key by key as it was written, with the rest listed."""

    values: dict[str, str] = field(default_factory=dict)
    """A switch is `on` or `off`."""
    adapters: list[str] = field(default_factory=list)
    """Every `--lora` and `--lora-scaled`: llama-server adds them up, where other flags replace each
    other."""
    left_out: list[str] = field(default_factory=list)
    unset: Set[str] = frozenset()
    """Words and values with variables that nothing sets."""

    def take(self, name: str, value: str) -> None:
        """Keep a flag by one of its names, with its value."""
        flag = _BY_NAME[name]
        if {value, f"{name}={value}"} & self.unset:
            self.left_out.append(f"{name} {value} (a variable that the text does not set)")
            return
        if flag.key in ("lora", "lora_scaled"):
            self.adapters.append(value)
        elif flag.key in APPENDED and flag.key in self.values:
            self.values[flag.key] += f",{value}"
        elif flag.takes == "switch" or name in flag.off_names:
            self.values[flag.key] = "on" if is_on(value) != (name in flag.off_names) else "off"
        else:
            self.values[flag.key] = value


def given_words(
    words: Sequence[str],
    environment: Mapping[str, str] | None = None,
    unset: Set[str] = frozenset(),
) -> Given:
    """Arguments of a llama-server, which win over its environment; the later of two wins.

    Values with variables that nothing sets, `unset`, are listed.
    """
    given = Given(unset=unset)
    for variable, value in (environment or {}).items():
        if variable.startswith("LLAMA_ARG_") and variable in _BY_NAME:
            given.take(variable, value)
        elif variable.startswith("LLAMA_"):
            given.left_out.append(f"{variable}={value}")
    rest = deque(words)
    while rest:
        _take_next(rest, given)
    return given


def given_pairs(pairs: Iterable[tuple[str, str]]) -> Given:
    """Keys of a models preset: flags without dashes, or environment variables."""
    given = Given()
    for key, value in pairs:
        variable = key if key.startswith("LLAMA_ARG_") else ""
        name = next((each for each in (variable, f"--{key}", f"-{key}") if each in _BY_NAME), None)
        if name is None:
            given.left_out.append(f"{key} = {value}")
        else:
            given.take(name, value)
    return given


def is_on(value: str) -> bool:
    """Whether a value switches something on."""
    return value.lower() not in _OFF


def _take_next(rest: deque[str], given: Given) -> None:
    word = rest.popleft()
    name, equals, value = word.partition("=")
    flag = _flag_named(name)
    if equals and flag is not None and flag.takes != "switch" and name not in flag.off_names:
        rest.appendleft(value)
    else:
        name, flag = word, _flag_named(word)
    if flag is None:
        given.left_out.append(_with_value(word, rest))
    elif flag.takes == "switch" or name in flag.off_names:
        given.take(name, "on")
    elif flag.takes == "maybe":
        has_value = bool(rest) and (rest[0].lower() in _CHOICES or rest[0] in given.unset)
        given.take(name, rest.popleft() if has_value else "on")
    elif rest:
        given.take(name, rest.popleft())
    else:
        given.left_out.append(f"{name} (without a value)")


def _flag_named(word: str) -> Flag | None:
    return _BY_NAME.get(word) if word.startswith("-") else None


def _with_value(word: str, rest: deque[str]) -> str:
    """A flag that is not known with what looks like its value."""
    is_flag = word.startswith("-") and "=" not in word
    if is_flag and rest and (not rest[0].startswith("-") or _NUMBER.fullmatch(rest[0])):
        return f"{word} {rest.popleft()}"
    return word
