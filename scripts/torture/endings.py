"""Which ends of processes were ours, and which were not."""

import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torture.journal import Line
from torture.tally import Kind

EXPECTED_FAILURES = ("The context is full",)
NOT_RUNNING = "The engine is not running"


@dataclass(frozen=True, slots=True)
class Ends:
    """How an application ended, and whom the torture killed."""

    pid: int
    exit_code: int
    struck: dict[str, set[int]]
    """Processes that were killed, by their role."""

    def wrong(self, lines: Iterable[Line]) -> Iterator[tuple[Kind, str]]:
        """Give every end and failure that no kill of ours explains."""
        was_killed = self.pid in self.struck["app"]
        if self.exit_code != 0 and not (was_killed and self.exit_code == -signal.SIGKILL):
            yield "crash", f"the application ended with {self.exit_code}:"
        for line in lines:
            yield from self._wrong_in(line)

    def is_late(self, line: Line) -> bool:
        """Whether a worker was killed by its client, because it took too long to end."""
        killed = line["kind"] == "closed" and line["exit_code"] == -signal.SIGKILL
        return killed and line["pid"] not in self.struck["worker"]

    def _wrong_in(self, line: Line) -> Iterator[tuple[Kind, str]]:
        was_struck = bool(self.struck["worker"])
        match line:
            case {"kind": "stopped", "exit_code": code, "message": message}:
                if code != -signal.SIGKILL or not was_struck:
                    yield "crash", f"the engine ended with {code}: {message}"
            case {"kind": "closed", "exit_code": code} if code not in (0, -signal.SIGKILL):
                yield "crash", f"the engine was closed and gave {code}"
            case {"kind": "failed", "title": str(title), "message": message}:
                if title not in EXPECTED_FAILURES and not (title == NOT_RUNNING and was_struck):
                    yield "crash", f"{title}: {message}"
            case {"kind": "lost", "message": str(message)} if not (was_struck):
                yield "hang", message
            case {"kind": "notice", "text": str(text)}:
                yield "database", text
            case _:
                pass
