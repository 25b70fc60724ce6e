"""llama.cpp's own figures to the byte: a process that answers one JSON line with one.

The log rounds to 0.01 MiB, so the bytes come from `llama_get_memory_breakdown`, which returns a
`std::map`: it is read as libstdc++ (GCC 12) lays it out and x86-64 returns it, on Linux alone, and
its sums are checked against the log of the same context.
"""

import ctypes
import json
import re
import sys
from collections import defaultdict

import llama_cpp

from engine.backends.llama_cpp.dry_run import DryRunner, Request, answer_channel, limit_memory
from engine.errors import EngineError, WorkerError

SYMBOL = "_Z26llama_get_memory_breakdownPK13llama_context"
LIBRARY = llama_cpp.llama_cpp._lib
PARTS = ("model", "context", "compute")
Breakdown = dict[str, dict[str, int]]
"""Bytes of model, context and compute by the name of the buffer type."""
ROUNDING_BYTES = 5300
SIZE_LINE = re.compile(
    r"(?P<owner>llama_kv_cache|llama_memory_recurrent|llama_dsv4_comp_state)\w*: "
    r"(?:.*layers = \d+, )?size =\s*(?P<mib>[\d.]+) MiB"
)


class Node(ctypes.Structure):
    """A node of the red-black tree of `std::map<buffer type, sizes>`."""


Node._fields_ = [
    ("color", ctypes.c_size_t),
    ("parent", ctypes.POINTER(Node)),
    ("left", ctypes.POINTER(Node)),
    ("right", ctypes.POINTER(Node)),
    ("buffer_type", ctypes.c_void_p),
    ("model", ctypes.c_size_t),
    ("context", ctypes.c_size_t),
    ("compute", ctypes.c_size_t),
]


class Map(ctypes.Structure):
    """`std::map` itself: a comparator, the header node's links, the number of nodes."""

    _fields_ = [
        ("compare", ctypes.c_size_t),
        ("color", ctypes.c_size_t),
        ("root", ctypes.POINTER(Node)),
        ("leftmost", ctypes.POINTER(Node)),
        ("rightmost", ctypes.POINTER(Node)),
        ("n_nodes", ctypes.c_size_t),
    ]


def breakdown(context: object) -> Breakdown:
    """What llama.cpp would allocate for a context and its model."""
    ask = getattr(LIBRARY, SYMBOL)
    ask.argtypes, ask.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_void_p
    result = Map()
    ask(ctypes.byref(result), context)
    found: Breakdown = defaultdict(lambda: dict.fromkeys(PARTS, 0))
    waiting = [result.root] if result.n_nodes else []
    while waiting:
        node = waiting.pop().contents
        sizes = found[name_of(node.buffer_type)]
        for part in PARTS:
            sizes[part] += getattr(node, part)
        waiting += [child for child in (node.left, node.right) if child]
    return dict(found)


def name_of(buffer_type: int) -> str:
    ask = LIBRARY.ggml_backend_buft_name
    ask.argtypes, ask.restype = [ctypes.c_void_p], ctypes.c_char_p
    return str(ask(buffer_type).decode())


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
            raise WorkerError(f"the breakdown has {total} bytes of context, the log {caches}")
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
