"""llama.cpp's side of the accuracy table: processes that answer, and what they once answered."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

from engine.configuration import Configuration
from engine.memory.dry_run import Request, request_of

SCRIPT = Path(__file__).with_name("dry_run_process.py")
VERSION = crc32(SCRIPT.read_bytes())
HEADER_BYTES = 16 * 1024**2
USUAL: dict[str, Any] = {
    **request_of(Configuration(Path(), n_ctx=0), "kvchat")["configuration"],
    "n_ctx": None,
}
"""The settings, and what they are by themselves."""
NO_MATTER = ("model_path", "draft", "sampling", "speculation")
"""Settings that buffers do not depend on: rows of drafts stand beside them."""

Answer = dict[str, object]


@dataclass
class Truth:
    """llama.cpp's figures, from processes that keep the model of the last question open."""

    stand_in: Path | None
    """Library of stand-in GPUs; None where there is none."""
    known: dict[str, Answer] = field(default_factory=dict)
    processes: "dict[int, subprocess.Popen[str]]" = field(default_factory=dict)

    def ask(self, key: str, request: object, n_gpus: int) -> Answer:
        """The figures of a request, from an earlier run where they are known."""
        if key not in self.known:
            self.known[key] = self._ask(json.dumps(request), n_gpus)
        return self.known[key]

    def _ask(self, line: str, n_gpus: int) -> Answer:
        process = self.processes.get(n_gpus) or self._start(n_gpus)
        assert process.stdin
        assert process.stdout
        process.stdin.write(line + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if answer:
            return dict(json.loads(answer))
        del self.processes[n_gpus]
        code = process.wait()
        if code >= 0:
            sys.exit(f"{SCRIPT.name} ended with code {code}: run it by itself to see why")
        return {"error": f"it crashes there (signal {-code})"}

    def _start(self, n_gpus: int) -> "subprocess.Popen[str]":
        self.processes[n_gpus] = subprocess.Popen(
            (sys.executable, str(SCRIPT), *([str(self.stand_in)] if n_gpus else [])),
            env={**os.environ, **({"STAND_IN_GPUS": str(n_gpus)} if n_gpus else {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self.processes[n_gpus]


def key_of(path: Path, request: Request, n_gpus: int) -> str:
    """What an answer depends on: the header as it is, the question, how it is answered.

    Settings as they are by themselves are left out: one that kvchat gets later changes no key.
    """
    return _key([*_contents(path), request, n_gpus, VERSION])


def _key(parts: list[Any]) -> str:
    *header, request, n_gpus, version = parts
    request_values = {
        name: value
        for name, value in request["configuration"].items()
        if name in USUAL and name not in NO_MATTER and value != USUAL[name]
    }
    asked = {**request, "configuration": request_values}
    return json.dumps([*header, asked, n_gpus, version], sort_keys=True)


@lru_cache(maxsize=2)
def _contents(path: Path) -> tuple[str, int, int]:
    with path.open("rb") as file:
        return path.name, path.stat().st_size, crc32(file.read(HEADER_BYTES))


def known_answers(rows: Path) -> dict[str, Answer]:
    """Read what an earlier run asked, broken off or not; changed formulas are compared at once."""
    if not rows.exists():
        return {}
    found = map(json.loads, rows.read_text(encoding="utf-8").splitlines())
    return {_key(json.loads(row["key"])): row["truth"] for row in found if "truth" in row}
