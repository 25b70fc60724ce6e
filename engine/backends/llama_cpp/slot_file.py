"""llama-server's slot files: a line of tokens and its state, without the name of a model.

Source: `llama_context::state_seq_save_file` of llama.cpp commit 0c1e57098 (version 3 of its files)
and `server_tokens::serialize` of its server (version 1). All numbers are little-endian.

- A file: magic `GGSQ`, version, number of integers, the integers, then a state as
  `llama_state_seq_get_data` gives it, without the magic and sequence id before it.
- The integers are the tokens, as `llama_state_seq_save_file` is given them, or what a server of
  today packs: -1, its version, number of tokens, the tokens, number of media chunks, their data.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from engine.backends.llama_cpp.state_edit import cell_range, join
from engine.backends.llama_cpp.state_format import (
    HEADER,
    MAGIC,
    AttentionLayout,
    State,
    StatePart,
    find_parts,
    find_shape,
)
from engine.errors import StateError
from engine.files import read_bytes, replace_file
from engine.model.ggml_types import GGML_TYPES

SLOT_HEADER = struct.Struct("<4sII")
SLOT_MAGIC = b"qsgg"
"""`GGSQ` as a number, least byte first."""
SLOT_VERSION = 3
PACKED = -1
"""Instead of a first token: what follows is packed by a server."""
PACKED_VERSION = 1
MAX_BYTES = 64 << 30
MAX_TOKENS = 1 << 27


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """What a slot file holds."""

    tokens: tuple[int, ...]
    state: bytes
    """As `Sequence.load` takes it."""
    type_k: str | None
    """ggml's name of the type of its keys; None where it has none, as a recurrent state."""
    type_v: str | None


def read_slot_file(path: Path) -> SavedSlot:
    """What a slot file holds, checked as far as that goes without its model.

    Raises:
        OSError: it cannot be read.
        StateError: it is none, is damaged, or holds images or sound.
    """
    data = read_bytes(path, limit=MAX_BYTES)
    if len(data) < SLOT_HEADER.size or data[:4] != SLOT_MAGIC:
        raise StateError(f"{path} is no slot file of llama-server: it begins with other bytes")
    _, version, n_integers = SLOT_HEADER.unpack_from(data)
    if version != SLOT_VERSION:
        raise StateError(f"{path} is a slot file of version {version}: {SLOT_VERSION} is read")
    end = SLOT_HEADER.size + 4 * n_integers
    if end > len(data):
        raise StateError(f"{path} is cut off: it says that it has {n_integers:,} tokens")
    integers = np.frombuffer(data, "<i4", n_integers, SLOT_HEADER.size)
    tokens = _tokens(integers.tolist(), path)
    state = HEADER.pack(MAGIC, 0) + data[end:]
    parts = find_parts(state)
    if parts is None:
        raise StateError(f"{path} has a state of an unknown layout, or is cut off")
    n_held = 1 + max((int(part.positions.max(initial=-1)) for part in parts), default=-1)
    if not 0 < n_held <= len(tokens):
        raise StateError(f"{path} says {len(tokens):,} tokens and its state holds {n_held:,}")
    return SavedSlot(tuple(tokens[:n_held]), state, *_types(parts))


def write_slot_file(
    path: Path, tokens: Sequence[int], states: Sequence[State], *, n_streams: int = 1
) -> int:
    """Write a line as llama-server restores it, and give the file's bytes.

    Args:
        path: The file; one that is there is replaced.
        tokens: Of the line.
        states: Of the line from its start on, in order, as `Sequence.save` gave them.
        n_streams: As of `whole_state`.

    Raises:
        OSError: it cannot be written.
        StateError: the states are damaged, or none of llama.cpp, or the line holds an image.
    """
    if min(tokens, default=0) < 0:
        raise StateError(
            "this line holds an image, which llama-server marks in a way of its own: no slot file "
            "is written of it"
        )
    state = memoryview(whole_state(states, n_streams=n_streams))[HEADER.size :]
    head = SLOT_HEADER.pack(SLOT_MAGIC, SLOT_VERSION, len(tokens))
    packed = np.asarray(tokens, "<i4").tobytes()
    replace_file(path, [head, packed, state], is_durable=False)
    return len(head) + len(packed) + len(state)


def whole_state(states: Sequence[State], *, n_streams: int = 1) -> State:
    """States that follow one another as one.

    Args:
        states: Of a line from its start on.
        n_streams: Streams of cells that the context has which shall read it.

    Raises:
        StateError: they are damaged, or cannot be joined.
    """
    shape = find_shape(states[0])
    if shape is None:
        raise StateError("the state has an unknown layout: it is none of llama.cpp")
    match shape:
        case (AttentionLayout() as only,):
            pieces, at = [], 0
            for state in states:
                pieces.append(cell_range(state, only, at))
                at += pieces[-1].n_cells
            return join(replace(only, n_streams=n_streams), pieces)
    if len(states) > 1:
        raise StateError("states of this model cannot be joined")
    return states[0]


def _tokens(integers: list[int], path: Path) -> list[int]:
    """The tokens among the integers of a file, packed or not."""
    if integers[:1] == [PACKED]:
        if len(integers) < 4 or integers[1] != PACKED_VERSION:
            raise StateError(f"{path} packs its tokens in a way that is not known")
        n_tokens = integers[2]
        if not 0 <= n_tokens <= len(integers) - 4:
            raise StateError(f"{path} is damaged: its tokens are {n_tokens:,} and it has fewer")
        if integers[3 + n_tokens]:
            raise StateError(f"{path} holds images or sound, which kvchat has no projector for")
        integers = integers[3 : 3 + n_tokens]
    if not integers or min(integers) < 0:
        raise StateError(f"{path} holds no line of tokens")
    return integers


def _types(parts: Sequence[StatePart]) -> tuple[str | None, str | None]:
    """The names of the types of keys and values."""
    for part in parts:
        if isinstance(part.shape, AttentionLayout) and part.shape.tensors:
            kinds = [GGML_TYPES.get(part.shape.tensors[at].type_id) for at in (0, -1)]
            type_k, type_v = (None if kind is None else kind.name for kind in kinds)
            return type_k, type_v
    return None, None
