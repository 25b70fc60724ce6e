"""llama-server: one process for each mode, all of them up side by side."""

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from speed_peers.catalogue import Mode, Question, Sampling, Setup
from speed_peers.records import PeerError, Reply

START_S = 120.0
REPLY_S = 600.0


@dataclass(slots=True)
class _Server:
    process: "subprocess.Popen[bytes]"
    port: int
    log: IO[bytes]


@dataclass(slots=True)
class LlamaServer:
    """Starts a server when a mode is asked for the first time.

    `libraries` are folders searched before the program's own: with those of the binding that
    kvchat loads, both sides compute with the very same files.
    """

    binary: Path
    libraries: tuple[Path, ...]
    setup: Setup
    versions: dict[str, str] = field(default_factory=dict)
    _servers: dict[str, _Server] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Ask the program for its version.

        Raises:
            PeerError: it does not run.
        """
        try:
            done = subprocess.run(
                (str(self.binary), "--version"), env=self._environment(), capture_output=True,
                text=True, check=False, timeout=60,
            )  # fmt: skip
        except OSError as error:
            raise PeerError(f"{self.binary.name} does not run: {error.strerror}") from error
        answered = (done.stderr + done.stdout).strip().splitlines()
        if done.returncode:
            raise PeerError(
                f"{self.binary.name} does not run: {answered[-1] if answered else 'no message'}"
            )
        version = next(
            (line for line in answered if line.startswith("version:")), "version unknown"
        )
        self.versions["llama.cpp"] = version.removeprefix("version:").strip()
        self.versions["libraries"] = shared_with(self.binary, self._environment(), self.libraries)

    def ask(self, mode: Mode, question: Question, sampling: Sampling) -> Reply:
        server = self._servers.get(mode.key) or self._start(mode)
        body = {
            "prompt": list(question.tokens),
            "n_predict": sampling.max_tokens,
            "temperature": sampling.temperature,
            "samplers": ["temperature"],
            "seed": sampling.seed,
            "return_tokens": True,
            "cache_prompt": True,
        }
        answered = self._post(server, mode, body)
        return reply_of(answered, self.setup.end_tokens, n_prompt=len(question.tokens))

    def close(self) -> None:
        for server in self._servers.values():
            server.process.terminate()
        for server in self._servers.values():
            try:
                server.process.wait(10)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()
            server.log.close()
        self._servers.clear()

    def _environment(self) -> dict[str, str]:
        folders = [str(folder.resolve()) for folder in (*self.libraries, self.binary.parent)]
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}

    def _start(self, mode: Mode) -> _Server:
        arguments = mode.settings["arguments"]
        assert isinstance(arguments, list)
        port = free_port()
        command = [
            str(self.binary), "--model", str(self.setup.model), "--ctx-size", str(self.setup.n_ctx),
            "--threads", str(self.setup.n_threads), "--threads-batch", str(self.setup.n_threads),
            "--parallel", "1", "--host", "127.0.0.1", "--port", str(port), "--no-webui",
            *arguments,
        ]  # fmt: skip
        if mode.needs_draft:
            command += ["--spec-draft-model", str(self.setup.draft)]
        log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the server
        process = subprocess.Popen(command, env=self._environment(), stdout=log, stderr=log)
        server = _Server(process, port, log)
        self._servers[mode.key] = server
        self._wait_until_ready(server, mode)
        return server

    def _wait_until_ready(self, server: _Server, mode: Mode) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if server.process.poll() is not None:
                raise PeerError(f"{mode.key} ended while loading: {last_line(server.log)}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise PeerError(f"{mode.key} was not ready after {START_S:.0f} s")

    def _post(self, server: _Server, mode: Mode, body: dict[str, object]) -> dict[str, object]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=REPLY_S) as answer:
                answered: dict[str, object] = json.load(answer)
                return answered
        except urllib.error.HTTPError as error:
            raise PeerError(f"{mode.key}: {error.read().decode(errors='replace')[:300]}") from error
        except OSError as error:
            raise PeerError(f"{mode.key}: {error}; {last_line(server.log)}") from error


def reply_of(answered: dict[str, object], ends: tuple[int, ...], *, n_prompt: int) -> Reply:
    """Read an answer of `/completion`.

    `predicted_ms` is counted from the first token, which the prefill brings (llama.cpp 0c1e570,
    `server_slot_stats`), so one token fewer was decoded in it.

    Raises:
        PeerError: the server read another number of tokens than it was sent.
    """
    timings = answered["timings"]
    assert isinstance(timings, dict)
    n_read = timings["cache_n"] + timings["prompt_n"]
    if n_read != n_prompt:
        raise PeerError(f"llama-server read {n_read} tokens where it was sent {n_prompt}")
    tokens = answered["tokens"]
    assert isinstance(tokens, list)
    n_drafted = timings.get("draft_n", 0)
    n_accepted = timings.get("draft_n_accepted", 0)
    n_steps = max(0, timings["predicted_n"] - 1)
    return Reply(
        without_end(tokens, ends),
        n_steps=n_steps,
        elapsed_s=timings["predicted_ms"] / 1000,
        n_drafted=n_drafted,
        n_accepted=n_accepted,
        n_rounds=max(0, n_steps - n_accepted),
    )


def without_end(tokens: list[int], ends: tuple[int, ...]) -> tuple[int, ...]:
    """The ids before the one that ends the turn."""
    return tuple(tokens[:-1] if tokens and tokens[-1] in ends else tokens)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def last_line(log: IO[bytes]) -> str:
    """The last line of a log that is not empty."""
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


def shared_with(binary: Path, environment: dict[str, str], folders: tuple[Path, ...]) -> str:
    """Report whether the program uses the libraries of the given folders."""
    done = subprocess.run(
        ("ldd", str(binary)), env=environment, capture_output=True, text=True, check=False
    )
    own, wanted = [], {folder.resolve() for folder in folders}
    for line in done.stdout.splitlines():
        name, _, rest = line.strip().partition(" => ")
        if not rest or not name.startswith(("libggml", "libllama.so")):
            continue
        if Path(rest.split(" (")[0]).resolve().parent not in wanted:
            own.append(name)
    if not wanted or own:
        return f"its own ({', '.join(own)})" if own else "its own"
    return "the files that kvchat loads"
