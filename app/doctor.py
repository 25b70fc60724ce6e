"""Checks of the machine: GPU, terminal, folders, settings, models, and llama.cpp itself."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app import paths
from app.config import load_settings
from app.store.database import problem_of
from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.errors import WorkerError
from engine.events import WorkerStopped
from engine.memory.hardware import find_nvidia_gpus, this_processor
from engine.memory.units import GIB, format_bytes
from engine.model.library import ModelEntry
from engine.process.blocking_client import (
    BlockingClient,
    EngineStoppedError,
    EngineTimeoutError,
)
from engine.process.client import WORKER_COMMAND, WorkerClient
from engine.process.watchdog import describe_exit

Status = Literal["ok", "note", "fail"]
LITTLE_BYTES = 1 << 30
NO_BYTES = 32 << 20
COLUMNS, LINES = 80, 24
GET_STARTER = "`kvchat models install-starter` downloads a small model"

BUILD_COMMAND = (sys.executable, "-P", "-m", "engine.backends.llama_cpp.build")
BUILD_TIMEOUT_S = 30.0
TRIAL = "trial decode"
TRIAL_TIMEOUT_S = 120.0
TRIAL_N_CTX = 256
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
REBUILD_FOR_GPU = (
    "rebuild llama-cpp-python with the CUDA toolkit (nvcc) on the PATH: "
    "CMAKE_ARGS=-DGGML_CUDA=ON pip install --force-reinstall --no-cache-dir "
    "--no-binary llama-cpp-python llama-cpp-python"
)
REINSTALL = (
    "pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python "
    "llama-cpp-python==0.3.36"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    """`note` works but could be better; `fail` keeps kvchat from working."""
    detail: str
    """Result of the check, with numbers."""
    advice: str | None = None
    """Advice on what to change; None if nothing has to be changed."""


def check_gpu(*, has_gpu_build: bool | None) -> Check:
    """Compare the NVIDIA devices with what llama.cpp can use.

    `has_gpu_build` is whether it can put layers on a GPU; None if that is unknown.
    """
    gpus = find_nvidia_gpus()
    if not gpus:
        device = "may use another GPU" if has_gpu_build else "uses the CPU"
        return Check("gpu", "ok", f"no NVIDIA GPU was found: llama.cpp {device}")
    detail = ", ".join(
        f"{gpu.name} ({format_bytes(gpu.free_bytes)} of {format_bytes(gpu.total_bytes)} free)"
        for gpu in gpus
    )
    if has_gpu_build is not False:
        return Check("gpu", "ok", detail)
    return Check("gpu", "note", f"{detail}; llama.cpp is a CPU build", REBUILD_FOR_GPU)


def check_folders(entries: Sequence[ModelEntry]) -> Iterator[Check]:
    """Check folders, disk space, settings, and the models that were found."""
    yield _folders()
    yield _space(paths.data_dir())
    yield _settings()
    yield _chats()
    yield _models(entries)


def _folders() -> Check:
    folders = {
        "settings": paths.config_dir(),
        "chats and models": paths.data_dir(),
        "logs": paths.state_dir(),
        "cache": paths.cache_dir(),
    }
    closed = [
        f"{name} in {folder}"
        for name, folder in folders.items()
        if not os.access(_nearest_existing(folder), os.W_OK | os.X_OK)
    ]
    if not closed:
        return Check("folders", "ok", "all folders are writable; `kvchat where` lists them")
    advice = (
        "make these folders writable, or set other folders in XDG_CONFIG_HOME, XDG_DATA_HOME, "
        "XDG_STATE_HOME and XDG_CACHE_HOME"
    )
    return Check("folders", "fail", f"cannot be written: {', '.join(closed)}", advice)


def _space(folder: Path) -> Check:
    free = shutil.disk_usage(_nearest_existing(folder)).free
    detail = f"{free / GIB:.1f} GiB free in {folder}"
    if free < NO_BYTES:
        return Check("disk", "fail", detail, "free some space: chats cannot be saved")
    if free < LITTLE_BYTES:
        return Check("disk", "note", detail, "free some space before you download models")
    return Check("disk", "ok", detail)


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _settings() -> Check:
    path, problem = paths.settings_path(), load_settings().problem
    if problem is not None:
        advice = "correct the file; until then, kvchat uses the defaults"
        return Check("settings", "note", problem, advice)
    none = "no settings file; kvchat uses the defaults"
    return Check("settings", "ok", str(path) if path.exists() else none)


def _chats() -> Check:
    path = paths.database_path()
    problem = problem_of(path)
    if problem is not None:
        return Check("chats", "fail", problem, "docs/chat.md explains backups and damaged files")
    return Check("chats", "ok", f"{path} can be opened" if path.exists() else "no chats yet")


def _models(entries: Sequence[ModelEntry]) -> Check:
    broken = [entry for entry in entries if entry.problem is not None]
    if not entries:
        return Check("models", "note", "none found", GET_STARTER)
    detail = f"{len(entries) - len(broken)} found"
    if not broken:
        return Check("models", "ok", detail)
    names = ", ".join(f"{entry.name} ({entry.problem})" for entry in broken)
    return Check("models", "note", f"{detail}, broken: {names}", "download the broken models again")


def check_terminal() -> Iterator[Check]:
    """Check size, colours and characters of the terminal that this runs in."""
    yield _size(is_terminal=all(s.isatty() for s in (sys.stdin, sys.stdout, sys.stderr)))
    yield check_colors(os.environ)
    yield check_characters(sys.stdout.encoding)


def check_colors(environment: Mapping[str, str]) -> Check:
    """Check how many colours the terminal claims to have."""
    term = environment.get("TERM", "")
    if environment.get("NO_COLOR"):
        return Check("colours", "note", "NO_COLOR is set: the screen uses shades of grey")
    if environment.get("COLORTERM", "").lower() in ("truecolor", "24bit") or "direct" in term:
        return Check("colours", "ok", f"16 million (TERM={term})")
    if "256color" in term:
        return Check("colours", "ok", f"256 (TERM={term})")
    advice = (
        "if your terminal supports 256 colours, set TERM=xterm-256color (tmux-256color in tmux)"
    )
    return Check(
        "colours", "note", f"TERM is {term or 'not set'}: few colours are supported", advice
    )


def check_characters(encoding: str) -> Check:
    """Check whether box and bar characters can be written."""
    if encoding.lower().replace("-", "") == "utf8":
        return Check("characters", "ok", "UTF-8")
    detail = f"the encoding {encoding} has no characters for frames and bars"
    return Check("characters", "fail", detail, "set LANG to a UTF-8 locale such as C.UTF-8")


def _size(*, is_terminal: bool) -> Check:
    if not is_terminal:
        advice = "the chat needs a terminal; `kvchat run` does not"
        return Check("terminal", "note", "kvchat was not started in a terminal", advice)
    columns, lines = shutil.get_terminal_size()
    detail = f"{columns} columns, {lines} lines"
    if columns >= COLUMNS and lines >= LINES:
        return Check("terminal", "ok", detail)
    advice = f"enlarge the terminal to at least {COLUMNS}x{LINES}, ideally to 120x36"
    return Check("terminal", "note", detail, advice)


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """Version and features of llama.cpp."""

    version: str
    features: str
    has_gpu: bool


def check_build(command: Sequence[str] = BUILD_COMMAND) -> tuple[Check, BuildFacts | None]:
    """Load llama.cpp in a process of its own and ask it."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        detail = f"llama.cpp did not load within {BUILD_TIMEOUT_S:g} s"
        return Check("llama.cpp", "fail", detail, rebuild_advice(None)), None
    if done.returncode != 0:
        return Check("llama.cpp", "fail", *_why_not_loaded(done.returncode, done.stderr)), None
    facts = BuildFacts(**json.loads(done.stdout))
    target = "for a GPU" if facts.has_gpu else "for the CPU"
    detail = f"llama-cpp-python {facts.version}, built {target} ({facts.features})"
    return Check("llama.cpp", "ok", detail), facts


def check_trial(
    model: Path | None, log_path: Path, *, command: Sequence[str] = WORKER_COMMAND
) -> Check:
    """Load a model, if there is one, and decode a few tokens, as the chat does when it opens."""
    if model is None:
        return Check(TRIAL, "note", "no trial, because no model was found", GET_STARTER)
    client = WorkerClient(log_path=log_path, command=command)
    crashes: list[WorkerStopped] = []
    engine = BlockingClient(client, limit_s=TRIAL_TIMEOUT_S, on_restart=crashes.append)
    try:
        loaded = engine.load(
            Configuration(model, TRIAL_N_CTX, speculation=SpeculationSettings(PredictorName.OFF))
        )
    except WorkerError as error:
        return Check(TRIAL, "fail", *_why_no_trial(error, model, log_path))
    finally:
        client.close()
    if not crashes:
        detail = f"{model.stem} loaded and decoded tokens in {loaded.elapsed_s:.1f} s"
        return Check(TRIAL, "ok", detail)
    return Check(
        TRIAL,
        "fail",
        f"{model.stem} crashed llama.cpp ({_exit_of(crashes[-1])}); kvchat now decodes "
        "without extra buffer types, which is slower for batches",
        rebuild_advice(crashes[-1].exit_code),
    )


def rebuild_advice(exit_code: int | None) -> str:
    """Advice for building llama.cpp again, by the signal that ended the process."""
    if exit_code == -signal.SIGILL:
        return (
            "llama.cpp was built for another processor: rebuild it with `make llama`, or "
            f"{REINSTALL}"
        )
    if exit_code == -signal.SIGSEGV and "amx_tile" in (this_processor().features or ()):
        escaped = NO_AMX.replace(" ", "\\ ")
        return (
            "GCC 12 miscompiles llama.cpp's AMX code. Rebuild llama.cpp without AMX: run "
            "`make llama`, or "
            f"CMAKE_ARGS='-DCMAKE_C_FLAGS={escaped} -DCMAKE_CXX_FLAGS={escaped}' {REINSTALL}"
        )
    return f"rebuild llama.cpp: run `make llama` in a checkout of kvchat, or {REINSTALL}"


def _why_no_trial(error: WorkerError, model: Path, log_path: Path) -> tuple[str, str]:
    match error:
        case EngineStoppedError(event=stopped):
            return (
                f"the engine stopped while it ran {model.stem}: {_exit_of(stopped)}; see "
                f"{log_path}",
                rebuild_advice(stopped.exit_code),
            )
        case EngineTimeoutError():
            return (
                f"{model.stem} did not answer within {TRIAL_TIMEOUT_S:g} s; the log is {log_path}",
                "try a smaller model, or `kvchat models install-starter`",
            )
        case _:
            return f"{model.stem}: {error}", "try another model"


def _exit_of(stopped: WorkerStopped) -> str:
    return "no exit code" if stopped.exit_code is None else describe_exit(stopped.exit_code)


def _why_not_loaded(exit_code: int, stderr: str) -> tuple[str, str]:
    if exit_code < 0:
        return f"llama.cpp cannot be loaded: {describe_exit(exit_code)}", rebuild_advice(exit_code)
    last = (stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"llama.cpp cannot be loaded: {last}", rebuild_advice(None)
