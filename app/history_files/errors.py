"""What is wrong with a file of chats, in words for the user."""

from engine.errors import EngineError


class HistoryFileError(EngineError):
    """A file of chats cannot be read or written."""

    title = "The file of chats cannot be used"


def wrong_line(number: int, fact: str) -> HistoryFileError:
    """Give the error for one line of a file, counted from 1."""
    return HistoryFileError(f"line {number}: {fact}")
