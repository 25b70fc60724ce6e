"""Try the exports on the real programs: servers start and answer, schema and parser accept them.

    python scripts/check_export.py MODEL [--draft MODEL] [--llama-server PATH]
        [--llama-swap-schema config-schema.json] [--llama-cpp-server PYTHON]

llama-server is searched in LLAMA_SERVER and PATH too. The schema is llama-swap's own
(github.com/mostlygeek/llama-swap, MIT); PYTHON is one with `llama-cpp-python[server]`. Checks of
missing programs are skipped. The exit code is 1 if a check fails.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

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
from engine.process.server_process import PATH_VARIABLE, PROGRAM, free_port

START_LIMIT_S = 120.0
HOST = "127.0.0.1"
NOWHERE = Path("/nonexistent")
Configurations = Mapping[str, Configuration]


class Outcome(NamedTuple):
    """The result of one check; `text` is the answer or the problem."""

    name: str
    is_right: bool
    text: str


def main() -> None:
    """Run all checks and print a table."""
    server = shutil.which(os.environ.get(PATH_VARIABLE) or PROGRAM)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--llama-server", default=server)
    parser.add_argument("--llama-swap-schema")
    parser.add_argument("--llama-cpp-server", metavar="PYTHON")
    options = parser.parse_args()
    model = read_model(options.model.resolve())
    tried = configurations(model, options.draft or options.model)
    outcomes: list[Outcome] = []
    for title, tool, check in (
        ("llama-server", options.llama_server, _with_server),
        ("llama-swap schema", options.llama_swap_schema, _with_schema),
        ("llama-cpp-python server", options.llama_cpp_server, _with_python_server),
        ("systemd-analyze verify", shutil.which("systemd-analyze"), _with_systemd),
    ):
        outcomes += check(tool, model, tried) if tool else [Outcome(title, True, "skipped")]
    for name, is_right, text in outcomes:
        print(f"{name:44} {'ok' if is_right else 'FAILED':7} {text}")
    sys.exit(not all(outcome.is_right for outcome in outcomes))


def configurations(model: Model, draft: Path) -> Configurations:
    """Every built-in preset for the model, and configurations with settings of no preset."""
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


def _with_server(server: str, model: Model, tried: Configurations) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        odd = Path(folder) / "a model's $HOME ${x} 100%.gguf"
        odd.symlink_to(model.file.path)
        script, ini = Path(folder) / "serve.sh", Path(folder) / "models.ini"
        for name, each in tried.items():
            configuration, port = replace(each, model_path=odd), free_port(HOST)
            request = ExportRequest(configuration, program=server, port=port)
            script.write_text(FORMATS["shell"].render(request).text, encoding="utf-8")
            yield _answer(f"shell script: {name}", ["sh", str(script)], port)
            request = ExportRequest(configuration, name=name, port=free_port(HOST))
            text = FORMATS["models-preset"].render(request).text
            ini.write_text(text, encoding="utf-8")
            section = next(line for line in text.splitlines() if line.startswith("["))
            command = [server, "--models-preset", str(ini), "--port", str(request.port)]
            yield _answer(f"models preset: {name}", command, request.port, section.strip("[]"))


def _with_python_server(python: str, model: Model, tried: Configurations) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "server.json"
        for name, configuration in tried.items():
            request = ExportRequest(configuration, model, name=name, port=free_port(HOST))
            file.write_text(FORMATS["llama-cpp-python"].render(request).text, encoding="utf-8")
            command = [python, "-m", "llama_cpp.server", "--config_file", str(file)]
            title = f"llama-cpp-python server: {name}"
            yield _answer(title, command, request.port, ready="/v1/models")


def _answer(
    title: str, command: Sequence[str], port: int, model: str = "", ready: str = "/health"
) -> Outcome:
    """Start a server, wait until it is ready, and request a few tokens."""
    url = f"http://{HOST}:{port}"
    body = {"prompt": "The sea was calm and", "max_tokens": 8} | ({"model": model} if model else {})
    data, header = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", data, header)
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            _wait_until_ready(process, url + ready)
            with urllib.request.urlopen(request, timeout=START_LIMIT_S) as response:
                return Outcome(title, True, repr(json.load(response)["choices"][0]["text"]))
        except (OSError, LookupError, ValueError) as error:
            log.seek(0)
            return Outcome(title, False, " | ".join((str(error), *log.read().splitlines()[-6:])))
        finally:
            process.terminate()


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return
    raise OSError(f"the server ended with {process.returncode}")


def _with_schema(schema: str, model: Model, tried: Configurations) -> Iterator[Outcome]:
    import jsonschema  # type: ignore[import-untyped]  # not installed here
    import yaml

    validator = jsonschema.Draft7Validator(json.loads(Path(schema).read_bytes()))
    for name, configuration in tried.items():
        text = FORMATS["llama-swap"].render(ExportRequest(configuration, model, name=name)).text
        problem = "; ".join(each.message for each in validator.iter_errors(yaml.safe_load(text)))
        yield Outcome(f"llama-swap schema: {name}", not problem, problem)


def _with_systemd(analyze: str, model: Model, tried: Configurations) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        for name, configuration in tried.items():
            request = ExportRequest(configuration, model, name=name, program="/bin/true")
            unit = Path(folder) / FORMATS["systemd"].file_name(request)
            unit.write_text(FORMATS["systemd"].render(request).text, encoding="utf-8")
            done = subprocess.run(
                [analyze, "--user", "verify", str(unit)], capture_output=True, text=True,
                check=False, env={**os.environ, "XDG_RUNTIME_DIR": folder},
            )  # fmt: skip
            is_right = not done.stderr.strip() and not done.returncode
            problem = "" if is_right else f"exit code {done.returncode}: {done.stderr.strip()}"
            yield Outcome(f"systemd-analyze verify: {name}", is_right, problem)


if __name__ == "__main__":
    main()
