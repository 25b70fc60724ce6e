"""`kvchat run --plain`: a chat line by line, for screen readers and dumb terminals.

Nothing is drawn, moved or painted again: every text is written once, whole sentences at a time, and
numbers are words. It goes through a pipe as it does on a terminal.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from app import format as fmt
from app.console import print_line, print_text, read_line
from app.matching import TYPED_COMMAND
from engine.errors import WorkerError
from engine.events import Event, Finished, FinishReason, TokensCommitted
from engine.process.blocking_client import BlockingClient
from engine.requests import GenerationRequest, Message

HELP = (
    "Type a line and press enter. /new starts a new chat, /quit or Ctrl+D quits, Ctrl+C stops "
    "a reply."
)
_END = re.compile(r"(?<=[.!?:;])\s|\n")
"""End of a sentence or line, where a reply can be split."""


@dataclass(slots=True)
class PlainChat:
    """Answers questions in whole lines, each with all earlier messages."""

    engine: BlockingClient
    request: GenerationRequest
    """Settings of each request; messages in it precede the chat."""
    observe: Callable[[Event], None]
    """Sees every event."""

    def ask(self, text: str) -> Finished:
        """Ask one question and print its reply."""
        messages = (*self.request.messages, Message("user", text))
        print_line("Assistant:")
        finished = self._printed(replace(self.request, messages=messages))
        reply = Message("assistant", finished.text, finished.token_ids, finished.vocabulary_id)
        self.request = replace(self.request, messages=(*messages, reply))
        print_line(self._end(finished))
        return finished

    def _printed(self, request: GenerationRequest) -> Finished:
        def pieces(events: Iterable[Event]) -> Iterator[str]:
            for event in events:
                self.observe(event)
                if isinstance(event, TokensCommitted):
                    yield event.text

        try:
            print_text(sentences(pieces(self.engine.reply(request))), nl=False)
        except KeyboardInterrupt:
            self.engine.client.stop()
            print_text(sentences(pieces(self.engine.rest_of_reply())), nl=False)
        finished = self.engine.finished
        assert finished is not None
        if not finished.text.endswith("\n"):
            print_line()
        return finished

    def _end(self, finished: Finished) -> str:
        stats = finished.stats
        parts = [fmt.counted(stats.n_emitted, "token")]
        if stats.decode_tps:
            parts.append(f"{stats.decode_tps:.0f} per second")
        match finished.reason:
            case FinishReason.CANCELLED:
                parts.append("stopped")
            case FinishReason.LENGTH:
                parts.append("reply cut off at the token limit")
            case FinishReason.CONTEXT:
                parts.append("reply cut off: the context is full; /new starts a new chat")
        return f"({', '.join(parts)})"


def converse(chat: PlainChat, lines: Iterable[str]) -> int:
    """Answer lines until they end; 1 where the last one was not answered."""
    begin, is_answered = chat.request, True
    for line in lines:
        match line.strip():
            case "":
                continue
            case "/quit":
                break
            case "/new":
                chat.request = begin
                print_line("New chat.")
            case _ if TYPED_COMMAND.fullmatch(line.rstrip()):
                print_line(f"{HELP} To send a line that begins with /, put a space first.")
            case text:
                try:
                    chat.ask(text)
                    is_answered = True
                except WorkerError as error:
                    print_line(f"No reply: {error.title}: {error}")
                    is_answered = False
    return 0 if is_answered else 1


def asked_lines() -> Iterator[str]:
    """The lines of standard input; on a terminal each is asked for, and Ctrl+C asks again."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print_line(HELP)
    while True:
        try:
            if is_terminal:
                print_line("You:")
            line = read_line()
        except KeyboardInterrupt:
            print_line()
            continue
        if not line:
            return
        yield line


def sentences(pieces: Iterable[str]) -> Iterator[str]:
    """A text in whole sentences and lines, as soon as each is whole."""
    rest = ""
    for piece in pieces:
        rest += piece
        ends = [match.end() for match in _END.finditer(rest)]
        if ends:
            yield rest[: ends[-1]]
            rest = rest[ends[-1] :]
    if rest:
        yield rest
