"""The memory that a container leaves to this process: Linux control groups, version 2 and 1.

Kernel documentation: `admin-guide/cgroup-v2.rst` (`memory.max`, `memory.current`, `memory.stat`)
and `cgroup-v1/memory.rst`. A limit holds for all groups below it, so the smallest on the way up
counts.
"""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
UNLIMITED = 1 << 60
"""Version 1 writes a number near 2^63 where there is no limit."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What a group may use, and what it could still get without swapping."""

    total_bytes: int
    free_bytes: int


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """Give the tightest limit on this process's memory; None where there is none."""
    found = [limit for group in _groups(root) if (limit := _limit(group)) is not None]
    if not found:
        return None
    return MemoryLimit(
        min(limit.total_bytes for limit in found), min(limit.free_bytes for limit in found)
    )


def _groups(root: Path) -> list[Path]:
    """Give the folders of the process's memory group and of those above it."""
    mounted = root / "sys/fs/cgroup"
    groups = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if controllers == "":
            top = mounted
        elif "memory" in controllers.split(","):
            top = mounted / "memory"
        else:
            continue
        group = top / path.lstrip("/")
        # Inside a container the path may be the host's, and only the top is there.
        groups += [folder for folder in (group, *group.parents) if folder.is_relative_to(top)]
    return list(dict.fromkeys(groups))


def _limit(group: Path) -> MemoryLimit | None:
    total = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
    if total is None or total >= UNLIMITED:
        return None
    used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
    return MemoryLimit(total, max(0, total - max(0, used - _reclaimable(group))))


def _reclaimable(group: Path) -> int:
    """Give the bytes of file pages that nobody uses now: they go before anything is refused."""
    fields = dict(
        line.split(" ", 1) for line in _text(group / "memory.stat").splitlines() if " " in line
    )
    value = fields.get("total_inactive_file", fields.get("inactive_file", "0")).strip()
    return int(value) if value.isdecimal() else 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""  # no such file: the kernel has no such group
