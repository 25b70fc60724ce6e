"""Chats as Markdown, for people to read."""

from collections.abc import Iterable, Iterator, Sequence

from app.format import local_time
from app.store.records import ChatTree, StoredMessage
from engine.model.ollama import model_title

TITLE_LENGTH = 60
SPEAKERS = {"system": "System", "user": "You", "assistant": "Assistant"}


def markdown_of(trees: Iterable[ChatTree], *, all_branches: bool = False) -> Iterator[str]:
    """Chats as Markdown, in parts: the shown branch, or every branch."""
    for tree in trees:
        yield from _chat(tree, all_branches=all_branches)


def n_left_out(trees: Sequence[ChatTree]) -> int:
    """Messages that are not on the shown branches."""
    return sum(len(tree.messages) - len(_shown(tree)) for tree in trees)


def _chat(tree: ChatTree, *, all_branches: bool) -> Iterator[str]:
    shown = _shown(tree)
    branches = _branches(tree, shown) if all_branches else [shown]
    yield _head(tree)
    above = {message.id: message for message in tree.messages}
    for branch in branches:
        if branch is not shown:
            yield _note(above.get(branch[0].parent_id or 0))
        for message in branch:
            yield _message(message)


def _shown(tree: ChatTree) -> list[StoredMessage]:
    by_id = {message.id: message for message in tree.messages}
    path: list[StoredMessage] = []
    message = by_id.get(tree.chat.head_id or 0)
    while message is not None:
        path.append(message)
        message = by_id.get(message.parent_id or 0)
    return path[::-1]


def _branches(tree: ChatTree, shown: list[StoredMessage]) -> list[list[StoredMessage]]:
    """The shown branch and each other one from where it diverges, a parent before a child."""
    seen = {message.id for message in shown}
    branches = [shown]
    last: dict[int, list[StoredMessage]] = {}
    for message in tree.messages:
        if message.id in seen:
            continue
        branch = last.pop(message.parent_id or 0, None)
        if branch is None:
            branch = []
            branches.append(branch)
        branch.append(message)
        last[message.id] = branch
    return branches


def _head(tree: ChatTree) -> str:
    chat = tree.chat
    title = " ".join(chat.title.split()) or "Chat"
    begun = f"Begun {local_time(chat.created_at)}"
    model = f", {model_title(chat.model_path)}" if chat.model_path else ""
    system = f"\n{_quote(chat.system_prompt)}\n" if chat.system_prompt else ""
    return f"# {title}\n\n{begun}{model}\n{system}\n"


def _message(message: StoredMessage) -> str:
    speaker = message.model_name if message.role == "assistant" else None
    heading = f"## {' '.join((speaker or SPEAKERS[message.role]).split())}"
    return f"{heading}, {local_time(message.created_at)}\n\n{message.content}\n\n"


def _note(parent: StoredMessage | None) -> str:
    if parent is None:
        text = "Another branch that begins at the first message"
    else:
        line = " ".join(parent.content.split())
        short = line if len(line) <= TITLE_LENGTH else f"{line[: TITLE_LENGTH - 1]}…"
        text = f"Another branch after “{short}”"
    return f"---\n\n*{text}*\n\n"


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))
