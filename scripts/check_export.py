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
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

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
from engine.presets.export import ExportRequest
from engine.presets.formats import FORMATS
from engine.presets.library import find_preset, list_presets

START_LIMIT_S = 120.0
HEALTH = "/health"
NOWHERE = Path("/nonexistent")
Tried = dict[str, Configuration]


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
    analyze = shutil.which("systemd-analyze")
    outcomes: list[Outcome] = []
    for title, tool, attempts in (
        ("llama-server", asked.llama_server, _with_server),
        ("llama-swap schema", asked.llama_swap_schema, _with_schema),
        ("llama-cpp-python server", asked.llama_cpp_server, _with_python_server),
        ("systemd-analyze verify", Path(analyze) if analyze else None, _with_systemd),
    ):
        left_out = [Outcome(title, answer="not there: left out")]
        outcomes += left_out if tool is None else attempts(tool, model, tried)
    for outcome in outcomes:
        state = "FAILED" if outcome.problem else "ok"
        print(f"{outcome.name:44} {state:7} {outcome.problem or outcome.answer}")
    sys.exit(1 if any(outcome.problem for outcome in outcomes) else 0)


def configurations(model: Model, draft: Path) -> Tried:
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
        base, n_slots=2, kv_unified=True, swa_full=True, offload_kqv=False, n_threads=2,
        use_extra_buffers=False, n_cpu_moe=1, split_mode="none", tensor_split=(1.0, 0.5),
        tensor_overrides=(TensorOverride(r"blk\.0\.ffn_.*"), TensorOverride("output")),
        speculation=replace(base.speculation, controller=ControllerName.FIXED, n_draft=2),
    )  # fmt: skip
    tried["all experts on the CPU"] = replace(base, n_cpu_moe=-1)
    return tried


def _with_server(server: Path, model: Model, tried: Tried) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        odd = Path(folder) / "a model's $HOME ${x} 100%.gguf"
        odd.symlink_to(model.file.path)
        script, ini = Path(folder) / "serve.sh", Path(folder) / "models.ini"
        for name, each in tried.items():
            configuration = replace(each, model_path=odd)
            request = ExportRequest(configuration, program=str(server), port=free_port())
            script.write_text(FORMATS["shell"].render(request).text, encoding="utf-8")
            yield _answered(f"shell script: {name}", ["sh", str(script)], request)
            request = ExportRequest(configuration, name=name, port=free_port())
            text = FORMATS["models-preset"].render(request).text
            ini.write_text(text, encoding="utf-8")
            section = next(line for line in text.splitlines() if line.startswith("["))
            command = [str(server), "--models-preset", str(ini), "--port", str(request.port)]
            yield _answered(f"models preset: {name}", command, request, section.strip("[]"))


def _with_python_server(python: Path, model: Model, tried: Tried) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "server.json"
        for name, configuration in tried.items():
            request = ExportRequest(configuration, model, name=name, port=free_port())
            file.write_text(FORMATS["llama-cpp-python"].render(request).text, encoding="utf-8")
            command = [str(python), "-m", "llama_cpp.server", "--config_file", str(file)]
            title = f"llama-cpp-python server: {name}"
            yield _answered(title, command, request, ready="/v1/models")


def _answered(
    title: str, command: Sequence[str], request: ExportRequest, model: str = "", ready: str = HEALTH
) -> Outcome:
    """Start a server, wait until it is ready, and ask it for a few tokens."""
    body = {"prompt": "The sea was calm and", "max_tokens": 8} | ({"model": model} if model else {})
    url = f"http://127.0.0.1:{request.port}"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            if not _is_listening(process, url + ready):
                return Outcome(title, f"did not start: {_tail(log)}")
            data, header = json.dumps(body).encode(), {"Content-Type": "application/json"}
            asked = urllib.request.Request(f"{url}/v1/completions", data, header)
            with urllib.request.urlopen(asked, timeout=START_LIMIT_S) as response:
                return Outcome(title, answer=repr(json.load(response)["choices"][0]["text"]))
        except (OSError, LookupError, ValueError) as error:
            return Outcome(title, f"did not answer: {error}: {_tail(log)}")
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _tail(log: IO[str]) -> str:
    log.seek(0)
    return " | ".join(log.read().splitlines()[-6:])


def _is_listening(process: "subprocess.Popen[bytes]", url: str) -> bool:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return True
        except OSError:
            time.sleep(0.2)
    return False


def _with_schema(schema: Path, model: Model, tried: Tried) -> Iterator[Outcome]:
    import jsonschema  # type: ignore[import-untyped]  # not installed here
    import yaml

    validator = jsonschema.Draft7Validator(json.loads(schema.read_text(encoding="utf-8")))
    for name, configuration in tried.items():
        text = FORMATS["llama-swap"].render(ExportRequest(configuration, model, name=name)).text
        problems = [each.message for each in validator.iter_errors(yaml.safe_load(text))]
        yield Outcome(f"llama-swap schema: {name}", "; ".join(problems) or None)


def _with_systemd(analyze: Path, model: Model, tried: Tried) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        for name, configuration in tried.items():
            request = ExportRequest(configuration, model, name=name, program="/bin/true")
            unit = Path(folder) / FORMATS["systemd"].file_name(request)
            unit.write_text(FORMATS["systemd"].render(request).text, encoding="utf-8")
            done = subprocess.run(
                [analyze, "--user", "verify", str(unit)], capture_output=True, text=True,
                check=False, env={**os.environ, "XDG_RUNTIME_DIR": folder},
            )  # fmt: skip
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
