"""What one check found."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    """`note` works but could be better; `fail` keeps kvchat from working."""
    detail: str
    """What is, with numbers."""
    advice: str | None = None
    """What to change, None when there is nothing."""
