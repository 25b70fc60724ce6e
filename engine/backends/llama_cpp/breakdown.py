"""The memory of a context to the byte, which llama.cpp tells in C++ only.

`llama_get_memory_breakdown` returns a `std::map`, read here as libstdc++ (GCC 12) lays it out: on
Linux alone, in a process of its own, and checked against what the log says of the same context.
"""

import ctypes
import sys
from collections import defaultdict
from collections.abc import Sequence

import llama_cpp

from engine.events import BufferSize

SYMBOL = "_Z26llama_get_memory_breakdownPK13llama_context"
LIBRARY = llama_cpp.llama_cpp._lib
PARTS = ("model", "context", "compute")
ROUNDING_BYTES = 16 * 1024

Breakdown = dict[str, dict[str, int]]
"""Bytes of model, context and compute by the name of the buffer type."""


class _Node(ctypes.Structure):
    """A node of the red-black tree behind `std::map<buffer type, sizes>`."""


_Node._fields_ = [
    ("color", ctypes.c_size_t),
    ("parent", ctypes.POINTER(_Node)),
    ("left", ctypes.POINTER(_Node)),
    ("right", ctypes.POINTER(_Node)),
    ("buffer_type", ctypes.c_void_p),
    ("model", ctypes.c_size_t),
    ("context", ctypes.c_size_t),
    ("compute", ctypes.c_size_t),
]


class _Map(ctypes.Structure):
    """`std::map` itself: a comparator, the header node's links, the number of nodes."""

    _fields_ = [
        ("compare", ctypes.c_size_t),
        ("color", ctypes.c_size_t),
        ("root", ctypes.POINTER(_Node)),
        ("leftmost", ctypes.POINTER(_Node)),
        ("rightmost", ctypes.POINTER(_Node)),
        ("n_nodes", ctypes.c_size_t),
    ]


def weights_buffers(context: object, logged: Sequence[BufferSize]) -> list[BufferSize]:
    """Give the weights of a context's model by their buffers.

    None where this llama.cpp cannot be asked, or tells other graphs than it logged.
    """
    if sys.platform != "linux" or not hasattr(LIBRARY, SYMBOL):
        return []
    sizes = breakdown(context)
    graphs = [buffer.nbytes for buffer in logged if buffer.kind == "compute"]
    told = sum(part["compute"] for part in sizes.values())
    if abs(told - sum(graphs)) > ROUNDING_BYTES * max(1, len(graphs)):
        return []
    weights = {name: part["model"] for name, part in sizes.items()}
    return [BufferSize(name, "model", nbytes) for name, nbytes in weights.items() if nbytes]


def breakdown(context: object) -> Breakdown:
    """Give what llama.cpp would allocate for a context and its model."""
    ask = getattr(LIBRARY, SYMBOL)
    ask.argtypes, ask.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_void_p
    result = _Map()
    ask(ctypes.byref(result), context)
    found: Breakdown = defaultdict(lambda: dict.fromkeys(PARTS, 0))
    waiting = [result.root] if result.n_nodes else []
    while waiting:
        node = waiting.pop().contents
        sizes = found[_name_of(node.buffer_type)]
        for part in PARTS:
            sizes[part] += getattr(node, part)
        waiting += [child for child in (node.left, node.right) if child]
    return dict(found)


def _name_of(buffer_type: int) -> str:
    ask = LIBRARY.ggml_backend_buft_name
    ask.argtypes, ask.restype = [ctypes.c_void_p], ctypes.c_char_p
    return str(ask(buffer_type).decode())
