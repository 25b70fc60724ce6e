"""Tries exports on the real programs: llama-server starts and answers, schemas and parsers agree.

    python scripts/check_export.py MODEL [--draft MODEL] [--llama-server PATH]
        [--llama-swap-schema config-schema.json] [--llama-cpp-server PYTHON]

llama-server is looked for in KVCHAT_LLAMA_SERVER and PATH too. The schema is llama-swap's own
(github.com/mostlygeek/llama-swap, MIT); PYTHON is one with `llama-cpp-python[server]`. What is not
there is said and left out. Exit code 1 when something fails.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.configuration import (
    Configuration,
    ControllerName,
    DraftConfiguration,
    PredictorName,
    TensorOverride,
)
from engine.memory.hardware import devices
from engine.model.architecture import Model, read_model
from engine.planning.resolve import resolve
from engine.presets.library import find_preset, list_presets
from engine.presets.programs.base import ExportRequest
from engine.presets.programs.formats import FORMATS

START_LIMIT_S = 120.0
NOWHERE = Path("/nonexistent")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one attempt."""

    name: str
    problem: str | None = None
    answer: str = ""


def main() -> None:
    """Try everything that is there, and print a table."""
    asked = _arguments()
    model = read_model(asked.model.resolve())
    tried = configurations(model, asked.draft or asked.model)
    outcomes = [
        *_with_server(asked.llama_server, model, tried),
        *_with_schema(asked.llama_swap_schema, model, tried),
        *_with_python_server(asked.llama_cpp_server, model, tried),
        *_with_systemd(model, tried),
    ]
    for outcome in outcomes:
        state = "FAILED" if outcome.problem else "ok"
        print(f"{outcome.name:44} {state:7} {outcome.problem or outcome.answer}")
    sys.exit(1 if any(outcome.problem for outcome in outcomes) else 0)


def configurations(model: Model, draft: Path) -> dict[str, Configuration]:
    """Every built-in preset for the model, then what presets leave alone."""
    machine = devices()
    tried = {
        entry.name: resolve(find_preset(entry.name, NOWHERE), model, machine, target="llama-server")
        for entry in list_presets(NOWHERE)
        if entry.problem is None
    }
    base = replace(next(iter(tried.values())), n_ctx=2048)
    drafting = replace(
        base.speculation, predictor=PredictorName.DRAFT, draft_min_tokens=1, n_draft=2
    )
    tried["draft model"] = replace(
        base, draft=DraftConfiguration(draft.resolve(), 2048), speculation=drafting
    )
    tried["rarer flags"] = replace(
        base,
        n_slots=2,
        kv_unified=True,
        swa_full=True,
        offload_kqv=False,
        use_extra_buffers=False,
        n_threads=2,
        n_cpu_moe=1,
        split_mode="none",
        tensor_split=(1.0, 0.5),
        tensor_overrides=(TensorOverride(r"blk\.0\.ffn_.*"), TensorOverride("output")),
        speculation=replace(base.speculation, controller=ControllerName.FIXED, n_draft=2),
    )
    tried["all experts on the CPU"] = replace(base, n_cpu_moe=-1)
    return tried


def _with_server(
    server: Path | None, model: Model, tried: dict[str, Configuration]
) -> Iterator[Outcome]:
    if server is None:
        yield Outcome("llama-server", answer="not found: left out")
        return
    with tempfile.TemporaryDirectory() as folder:
        odd = Path(folder) / "a model's $HOME ${x} 100%.gguf"
        odd.symlink_to(model.file.path)
        paths = {name: replace(each, model_path=odd) for name, each in tried.items()}
        for name, configuration in paths.items():
            yield _try_script(name, server, Path(folder), configuration)
        for name, configuration in paths.items():
            yield _try_router(name, server, Path(folder), configuration)


def _try_script(name: str, server: Path, folder: Path, configuration: Configuration) -> Outcome:
    request = ExportRequest(configuration, program=str(server), port=free_port())
    script = folder / "serve.sh"
    script.write_text(FORMATS["shell"].render(request).text, encoding="utf-8")
    title = f"shell script: {name}"
    return _answered(title, ["sh", str(script)], request.port, {"prompt": PROMPT, "n_predict": 8})


def _try_router(name: str, server: Path, folder: Path, configuration: Configuration) -> Outcome:
    request = ExportRequest(configuration, name=name, port=free_port())
    exported = FORMATS["models-preset"].render(request)
    ini = folder / "models.ini"
    ini.write_text(exported.text, encoding="utf-8")
    section = next(line for line in exported.text.splitlines() if line.startswith("["))
    body = {"prompt": PROMPT, "n_predict": 8, "model": section.strip("[]")}
    command = [str(server), "--models-preset", str(ini), "--port", str(request.port)]
    return _answered(f"models preset: {name}", command, request.port, body)


PROMPT = "The sea was calm and"


def _answered(title: str, command: Sequence[str], port: int, body: dict[str, object]) -> Outcome:
    """Start a server, wait until it is healthy, and ask it for a few tokens."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            if not _is_healthy(process, port):
                return Outcome(title, f"did not start: {_tail(log)}")
            return Outcome(title, answer=repr(_ask(port, body)))
        except (urllib.error.URLError, OSError, KeyError) as error:
            return Outcome(title, f"did not answer: {error}: {_tail(log)}")
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _tail(log: object) -> str:
    assert hasattr(log, "seek")
    assert hasattr(log, "read")
    log.seek(0)
    return " | ".join(str(log.read()).splitlines()[-6:])


def _is_healthy(process: "subprocess.Popen[bytes]", port: int) -> bool:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


def _ask(port: int, body: dict[str, object]) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=START_LIMIT_S) as response:
        return str(json.load(response)["content"])


def _with_schema(
    schema: Path | None, model: Model, tried: dict[str, Configuration]
) -> Iterator[Outcome]:
    if schema is None:
        yield Outcome("llama-swap schema", answer="not given: left out")
        return
    import jsonschema
    import yaml

    validator = jsonschema.Draft7Validator(json.loads(schema.read_text(encoding="utf-8")))
    for name, configuration in tried.items():
        yield _valid(name, model, configuration, validator, yaml)


def _valid(
    name: str,
    model: Model,
    configuration: Configuration,
    validator: object,
    yaml: object,
) -> Outcome:
    request = ExportRequest(configuration, model, name=name)
    text = FORMATS["llama-swap"].render(request).text
    data = yaml.safe_load(text)  # type: ignore[attr-defined]  # untyped, not installed here
    problems = [
        each.message
        for each in validator.iter_errors(data)  # type: ignore[attr-defined]  # as above
    ]
    return Outcome(f"llama-swap schema: {name}", "; ".join(problems) or None)


def _with_python_server(
    python: Path | None, model: Model, tried: dict[str, Configuration]
) -> Iterator[Outcome]:
    if python is None:
        yield Outcome("llama-cpp-python server", answer="not given: left out")
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, configuration in tried.items():
            request = ExportRequest(configuration, model, name=name, port=free_port())
            file = Path(folder) / "server.json"
            file.write_text(FORMATS["llama-cpp-python"].render(request).text, encoding="utf-8")
            command = [str(python), "-m", "llama_cpp.server", "--config_file", str(file)]
            yield _python_answered(f"llama-cpp-python server: {name}", command, request)


def _python_answered(title: str, command: Sequence[str], request: ExportRequest) -> Outcome:
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        url = f"http://127.0.0.1:{request.port}/v1"
        body = json.dumps({"prompt": PROMPT, "max_tokens": 4}).encode()
        asked = urllib.request.Request(
            f"{url}/completions", body, {"Content-Type": "application/json"}
        )
        try:
            if not _is_listening(process, f"{url}/models"):
                return Outcome(title, f"did not start: {_tail(log)}")
            with urllib.request.urlopen(asked, timeout=START_LIMIT_S) as response:
                return Outcome(title, answer=repr(json.load(response)["choices"][0]["text"]))
        except (urllib.error.URLError, OSError) as error:
            return Outcome(title, f"did not answer: {error}: {_tail(log)}")
        finally:
            process.kill()
            process.wait()


def _is_listening(process: "subprocess.Popen[bytes]", url: str) -> bool:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    return False


def _with_systemd(model: Model, tried: dict[str, Configuration]) -> Iterator[Outcome]:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        yield Outcome("systemd-analyze verify", answer="not found: left out")
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, configuration in tried.items():
            request = ExportRequest(configuration, model, name=name, program="/bin/true")
            exported = FORMATS["systemd"].render(request)
            unit = Path(folder) / FORMATS["systemd"].file_name(request)
            unit.write_text(exported.text, encoding="utf-8")
            done = subprocess.run(
                [analyze, "--user", "verify", str(unit)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "XDG_RUNTIME_DIR": folder},
            )
            problem = done.stderr.strip() or (done.returncode and f"exit code {done.returncode}")
            yield Outcome(f"systemd-analyze verify: {name}", problem or None)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _arguments() -> argparse.Namespace:
    given = os.environ.get("KVCHAT_LLAMA_SERVER") or shutil.which("llama-server")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--llama-server", type=Path, default=Path(given) if given else None)
    parser.add_argument("--llama-swap-schema", type=Path)
    parser.add_argument("--llama-cpp-server", type=Path, metavar="PYTHON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
