"""What a snapshot file says of itself in words: namespace, place in the line, use."""

import json
import math

from engine.cache.namespace import Namespace
from engine.cache.radix import TOKEN_BYTES, StoredState
from engine.errors import StateError

KINDS: dict[str, type] = {
    "namespace": str,
    "model": str,
    "fields": list,
    "key": str,
    "parent": str,
    "line": str,
    "start": int,
    "end": int,
    "recompute_s": float,
    "owners": list,
    "n_uses": int,
    "used_at": float,
}


def describe(namespace: Namespace, state: StoredState) -> bytes:
    """Write the description of a state: JSON, for `read_description`."""
    about = {
        "namespace": namespace.key,
        "model": namespace.model,
        "fields": [list(field) for field in namespace.fields],
        "key": state.key,
        "parent": state.parent,
        "line": state.line,
        "start": state.start,
        "end": state.end,
        "recompute_s": float(state.recompute_s),
        "owners": sorted(state.owners),
        "n_uses": state.n_uses,
        "used_at": float(state.used_at),
    }
    return json.dumps(about).encode()


def read_description(text: bytes, packed: bytes, nbytes: int) -> tuple[Namespace, StoredState]:
    """Read what `describe` wrote.

    Args:
        text: The description.
        packed: The tokens that stand behind it.
        nbytes: Size of the state as the backend gave it.

    Raises:
        StateError: it says something else, or nothing that can be.
    """
    try:
        about = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"its description is no JSON ({error})") from error
    if not isinstance(about, dict) or set(about) != set(KINDS):
        raise StateError("its description is not that of a state")
    wrong = [name for name, kind in KINDS.items() if type(about[name]) is not kind]
    if wrong:
        raise StateError(f"its description is wrong about {', '.join(wrong)}")
    state = StoredState(
        key=about["key"],
        parent=about["parent"],
        line=about["line"],
        start=about["start"],
        end=about["end"],
        packed=packed,
        nbytes=nbytes,
        recompute_s=about["recompute_s"],
        owners=frozenset(map(str, about["owners"])),
        n_uses=about["n_uses"],
        used_at=about["used_at"],
    )
    _check(state)
    return Namespace(about["namespace"], about["model"], _fields(about["fields"])), state


def _check(state: StoredState) -> None:
    n_tokens = len(state.packed) // TOKEN_BYTES
    if not 0 <= state.start < state.end or state.end - state.start != n_tokens:
        raise StateError(f"it claims tokens {state.start} to {state.end} and holds {n_tokens}")
    times = (state.recompute_s, state.used_at)
    if state.n_uses < 0 or not all(math.isfinite(time) and time >= 0 for time in times):
        raise StateError("its times and uses cannot be")


def _fields(pairs: list[object]) -> tuple[tuple[str, str], ...]:
    fields = []
    for pair in pairs:
        if not isinstance(pair, list) or [type(part) for part in pair] != [str, str]:
            raise StateError("its namespace is not spelled as one")
        fields.append((pair[0], pair[1]))
    return tuple(fields)
