"""A peer that is a library: a small program in its environment, asked over lines of JSON."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

from speed_peers.catalogue import Mode, Question, Sampling, Setup
from speed_peers.records import PeerError, Reply, reply_of
from speed_peers.server import last_line

CHILDREN = Path(__file__).with_name("children")


class Child:
    """One process that holds all modes of a library; the first line it gets is the setup."""

    def __init__(self, command: Sequence[str], setup: Setup, *, folder: Path | None = None) -> None:
        """Start it and wait until it has loaded the model.

        Raises:
            PeerError: it does not start, or reports why it cannot continue.
        """
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the child
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                list(command), stdin=pipe, stdout=pipe, stderr=self._log, text=True, cwd=folder
            )
        except OSError as error:
            raise PeerError(f"{command[0]} does not run: {error}") from error
        answer = self._talk(
            {
                "model": str(setup.model.resolve()),
                "draft": None if setup.draft is None else str(setup.draft.resolve()),
                "n_ctx": setup.n_ctx,
                "n_threads": setup.n_threads,
                "end_tokens": setup.end_tokens,
            }
        )
        versions = answer["versions"]
        assert isinstance(versions, dict)
        self.versions: dict[str, str] = versions

    def ask(self, mode: Mode, question: Question, sampling: Sampling) -> Reply:
        answer = self._talk(
            {"settings": mode.settings, "tokens": question.tokens, **asdict(sampling)}
        )
        return reply_of(answer)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _talk(self, question: dict[str, object]) -> dict[str, object]:
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            answer: dict[str, object] = json.loads(line)
        except (OSError, ValueError) as error:
            self._process.wait()
            code = self._process.returncode
            raise PeerError(f"it ended with {code}: {last_line(self._log)}") from error
        if "error" in answer:
            raise PeerError(str(answer["error"]))
        return answer


def binding_child(python: Path, setup: Setup) -> Child:
    """llama-cpp-python in an environment of its own, or in the one that kvchat runs in."""
    return Child((str(python), str(CHILDREN / "binding.py")), setup)


def transformers_child(python: Path, setup: Setup) -> Child:
    """transformers with torch, on the GGUF file as it turns it into 32-bit weights."""
    return Child((str(python), str(CHILDREN / "transformers_child.py")), setup)


def node_child(folder: Path, setup: Setup) -> Child:
    """node-llama-cpp of the folder where npm installed it.

    Raises:
        PeerError: it is not installed there.
    """
    package = folder / "node_modules" / "node-llama-cpp"
    if not package.is_dir():
        raise PeerError(f"there is no node-llama-cpp in {folder.name}: npm install it there")
    command = ("node", str(CHILDREN / "node.mjs"), str((package / "dist" / "index.js").resolve()))
    return Child(command, setup, folder=folder)
