"""How llama.cpp was built and whether it decodes, both in processes that may crash."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.doctor.checks import Check
from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.errors import WorkerError
from engine.events import WorkerStopped
from engine.memory.processor import this_processor
from engine.process.blocking_client import (
    BlockingClient,
    EngineStoppedError,
    EngineTimeoutError,
)
from engine.process.client import WORKER_COMMAND, WorkerClient
from engine.process.watchdog import describe_exit

BUILD_COMMAND = (sys.executable, "-P", "-m", "engine.backends.llama_cpp.build")
BUILD_TIMEOUT_S = 30.0
TRIAL = "trial decode"
TRIAL_TIMEOUT_S = 120.0
TRIAL_N_CTX = 256

NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
REINSTALL = (
    "pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python "
    "llama-cpp-python==0.3.36"
)


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """What llama.cpp says about itself."""

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
        detail = f"it did not load within {BUILD_TIMEOUT_S:g} s"
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
    """Load a model and decode a few tokens, as the chat does when it opens.

    Args:
        model: What to load; None says that there is nothing to try.
        log_path: Where llama.cpp's own lines go.
        command: How the engine's process is started.
    """
    if model is None:
        return Check(
            TRIAL,
            "note",
            "not tried, because no model was found",
            "`kvchat models install-starter` fetches a small one",
        )
    client = WorkerClient(log_path=log_path, command=command)
    crashes: list[WorkerStopped] = []
    engine = BlockingClient(client, limit_s=TRIAL_TIMEOUT_S, on_restart=crashes.append)
    try:
        loaded = engine.load(trial_configuration(model))
    except WorkerError as error:
        return Check(TRIAL, "fail", *_why_no_trial(error, model, log_path))
    finally:
        client.close()
    if not crashes:
        return Check(TRIAL, "ok", f"{model.stem} loaded and decoded in {loaded.elapsed_s:.1f} s")
    return Check(
        TRIAL,
        "fail",
        f"{model.stem} crashed llama.cpp ({_exit_of(crashes[-1])}); it decodes without extra "
        "buffer types, which is slower on batches and is what kvchat falls back to",
        rebuild_advice(crashes[-1].exit_code),
    )


def trial_configuration(model: Path) -> Configuration:
    """The smallest context that a few tokens need."""
    return Configuration(
        model_path=model,
        n_ctx=TRIAL_N_CTX,
        speculation=SpeculationSettings(predictor=PredictorName.OFF),
    )


def rebuild_advice(exit_code: int | None) -> str:
    """How to build llama.cpp again, by what ended the process."""
    if exit_code == -signal.SIGILL:
        return f"it was built for another processor, build it here: `make llama`, or {REINSTALL}"
    if exit_code == -signal.SIGSEGV and _has_amx():
        escaped = NO_AMX.replace(" ", "\\ ")
        return (
            "GCC 12 compiles llama.cpp's AMX code wrongly; build it without: `make llama`, or "
            f"CMAKE_ARGS='-DCMAKE_C_FLAGS={escaped} -DCMAKE_CXX_FLAGS={escaped}' {REINSTALL}"
        )
    return f"build it again: `make llama` in a checkout of kvchat, or {REINSTALL}"


def _why_no_trial(error: WorkerError, model: Path, log_path: Path) -> tuple[str, str]:
    """What happened instead of a decode, and what to do about it."""
    match error:
        case EngineStoppedError(event=stopped):
            return (
                f"{model.stem} ended the engine: {_exit_of(stopped)}; its log is {log_path}",
                rebuild_advice(stopped.exit_code),
            )
        case EngineTimeoutError():
            return (
                f"{model.stem} gave no answer within {TRIAL_TIMEOUT_S:g} s; the log is {log_path}",
                "try a smaller model, or `kvchat models install-starter`",
            )
        case _:
            return f"{model.stem}: {error}", "try another model"


def _exit_of(stopped: WorkerStopped) -> str:
    return "no exit code" if stopped.exit_code is None else describe_exit(stopped.exit_code)


def _why_not_loaded(exit_code: int, stderr: str) -> tuple[str, str]:
    if exit_code < 0:
        return f"it cannot be loaded: {describe_exit(exit_code)}", rebuild_advice(exit_code)
    last = (stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"it cannot be loaded: {last}", rebuild_advice(None)


def _has_amx() -> bool:
    return "amx_tile" in (this_processor().features or ())
