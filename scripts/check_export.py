"""Starts a real llama-server with the arguments of every built-in preset, and asks it something.

    python scripts/check_export.py LLAMA_SERVER MODEL [DRAFT]

Exit code 1 when one of them does not start or does not answer.
"""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

from engine.configuration import Configuration, DraftConfiguration, PredictorName
from engine.memory.hardware import devices
from engine.model.architecture import read_model
from engine.presets.export.llama_server import arguments
from engine.presets.library import find_preset, list_presets
from engine.presets.resolve import Machine, resolve

START_LIMIT_S = 60.0


def main() -> None:
    """Try every preset, then a draft model and the rarer flags."""
    server, model_path = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    draft = Path(sys.argv[3]).resolve() if len(sys.argv) > 3 else model_path
    model = read_model(model_path)
    machine = Machine(devices(), target="llama-server")
    tried: dict[str, Configuration] = {
        entry.name: resolve(find_preset(entry.name, Path("/")), model, machine)
        for entry in list_presets(Path("/nonexistent"))
    }
    base = replace(next(iter(tried.values())), n_ctx=2048)
    tried["draft model"] = replace(
        base,
        draft=DraftConfiguration(draft, 2048),
        speculation=replace(base.speculation, predictor=PredictorName.DRAFT, draft_min_tokens=1),
    )
    tried["rarer flags"] = replace(
        base,
        n_slots=2,
        kv_unified=True,
        swa_full=True,
        offload_kqv=False,
        use_extra_buffers=False,
        n_threads=2,
    )
    answers = {name: answer(server, configuration) for name, configuration in tried.items()}
    for name, text in answers.items():
        print(f"{name:14} {'answers' if text else 'FAILED'}  {text!r}")
    sys.exit(0 if all(answers.values()) else 1)


def answer(server: Path, configuration: Configuration) -> str | None:
    """Give what a server with the configuration's arguments says, None where it does not."""
    port = free_port()
    command = [server, *arguments(configuration), "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        if not wait_until_healthy(process, port):
            process.kill()
            print((process.stdout.read() if process.stdout else "")[-2000:])
            return None
        return ask(port)
    finally:
        process.kill()
        process.communicate()


def wait_until_healthy(process: "subprocess.Popen[str]", port: int) -> bool:
    """Wait for the server's health; False when it ended or took too long."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


def ask(port: int) -> str:
    """Ask for a few tokens."""
    body = json.dumps({"prompt": "The sea was calm and", "n_predict": 12}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(json.load(response)["content"])


def free_port() -> int:
    """Give a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
