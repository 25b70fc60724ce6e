"""llama.cpp's own figures to the byte: a process that answers one JSON line with one.

The log rounds to 0.01 MiB, so the bytes come from `llama_get_memory_breakdown`; the sums are
checked against the log of the same context.
"""

import ctypes
import json
import re
import sys

from engine.backends.llama_cpp.dry_run import (
    Breakdown,
    DryRunner,
    Request,
    answer_channel,
    breakdown,
    limit_memory,
)
from engine.errors import EngineError, WorkerError

ROUNDING_BYTES = 5300
SIZE_LINE = re.compile(
    r"(?P<owner>llama_kv_cache|llama_memory_recurrent|llama_dsv4_comp_state)\w*: "
    r"(?:.*layers = \d+, )?size =\s*(?P<mib>[\d.]+) MiB"
)


def padding(sizes: Breakdown) -> int:
    """How much longer buffers of a GPU may be than their tensors: rows are padded there."""
    return 4 * 1024**2 if any(name.startswith("GPU") for name in sizes) else 0


class Truth(DryRunner):
    """The dry run with its figures to the byte."""

    def figures(self, request: Request) -> dict[str, object]:
        """Weights, cache, state and compute by buffer type; state and output as logged.

        `output_grown` has as many rows of logits as one batch may ask for; it starts with fewer.
        """
        with self.context(request) as context:
            sizes = breakdown(context)
            logged = self._log.buffers("target")
            lines = [SIZE_LINE.search(line) for line in self._log._lines]
        n_rows, n_slots = request["n_rows"], request["configuration"]["n_slots"]
        output = sum(b.nbytes for b in logged if b.kind == "output")
        caches = {"llama_kv_cache": 0, "state": 0}
        for match in filter(None, lines):
            owner = match["owner"] if match["owner"] in caches else "state"
            caches[owner] += round(float(match["mib"]) * 1024**2)
        total = sum(part["context"] for part in sizes.values())
        n_caches = len([match for match in lines if match])
        if abs(sum(caches.values()) - total) > ROUNDING_BYTES * max(n_caches, 1) + padding(sizes):
            raise WorkerError(f"the breakdown says {total} bytes of context, the log {caches}")
        return {
            "buffers": sizes,
            "kv_logged": caches["llama_kv_cache"],
            "state_logged": caches["state"],
            "output": output,
            "output_grown": round(output * max(n_rows / n_slots, 1)),
        }


def main() -> None:
    """Answer requests until standard input closes; an argument names the stand-ins' library."""
    for library in sys.argv[1:]:
        ctypes.CDLL(library)
    channel = answer_channel()
    truth = Truth(limit_memory())
    for line in sys.stdin:
        try:
            answer: dict[str, object] = truth.figures(json.loads(line))
        except EngineError as error:
            answer = {"error": str(error)}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()


if __name__ == "__main__":
    main()
