"""Options when the context is full; nothing is dropped unless the user chooses it."""

from dataclasses import dataclass
from functools import partial

from app.cache import owner_of
from app.chat.context import MAX_SHARE, Summary, Trim, n_tokens_of, summary_request
from app.chat.conversation import Conversation
from app.chat.entries import Speaker, did_not_fit
from app.chat.update import Notice
from app.store.errors import ChatInUseError
from engine.errors import EngineError

SUMMARISING = "The model is summarising the messages above; {reply-stop} stops the summary."


@dataclass(frozen=True, slots=True)
class ContextFullOptions:
    """Options that are available now."""

    n_dropped: int
    """Messages that the model would no longer see; 0 if no turn can go."""
    can_branch: bool
    """Whether a new chat helps: the last question is not the only message of this chat."""
    can_take_back: bool
    """Whether the last question returns to the composer if nothing is done."""
    can_grow: bool = False
    """Whether the model was trained on more tokens than the context has."""


class ContextFull:
    """Frees context for the shown chat as the user chose; `StoreError` if it is not saved."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._history = conversation.history

    def is_needed(self) -> bool:
        """Whether the chat ends with a reply that did not fit, and would not fit now.

        Since then a larger context may have been loaded, or messages dropped.
        """
        last = self._history.unfinished()
        if last is None or self._conversation.loaded is None or not did_not_fit(last):
            return False
        n_max = (1 + MAX_SHARE) / 2 * self._conversation.n_ctx
        return sum(map(n_tokens_of, self._history.visible())) > n_max

    def options(self) -> ContextFullOptions:
        trim, path = self._trim(), self._history.visible()
        return ContextFullOptions(
            n_dropped=len(trim.dropped) if trim else 0,
            can_branch=any(message.role == "user" for message in path[1:]),
            can_take_back=self._conversation.refused is not None,
            can_grow=self._conversation.can_grow,
        )

    def shift(self) -> None:
        """Show the model the chat from a later question on, and continue the reply."""
        trim = self._trim()
        if trim is not None:
            self._history.see_from(trim.context_start)
            self._conversation.continue_reply()

    def summarise(self) -> None:
        """Let the model summarise the dropped turns, then continue the reply with the summary."""
        conversation, history = self._conversation, self._history
        trim, chat = self._trim(), history.chat
        if trim is None or chat is None or conversation.loaded is None:
            return
        if conversation.has_task:
            self._warn("Another summary or comparison is running: wait until it is complete.")
            return
        history.notes.add(trim.dropped[-1].id, SUMMARISING)
        request, n_left_out = summary_request(
            history.path_before(trim.context_start),
            system_prompt=history.system_prompt,
            context_start=chat.context_start,
            summary=chat.summary,
            n_ctx=conversation.n_ctx,
            owner=owner_of(chat.id),
        )
        if n_left_out:
            self._warn(
                f"The oldest {n_left_out:,} messages do not fit in the context: the summary leaves "
                "them out."
            )
        done = partial(self._use_summary, chat.id, trim)
        conversation.task = Summary(conversation.client, chat.id, request, done)

    def branch_off(self) -> None:
        """Ask the last question in a new chat with the same system prompt; this one stays."""
        question, chat = self._history.last(Speaker.USER), self._history.chat
        if question is None or chat is None:
            return
        self._conversation.undo_refused(returns_text=False)
        self._conversation.new_chat(like=chat)
        self._conversation.send(question.content)

    def see_all(self) -> bool:
        """Show the model the whole chat again; False if it sees it."""
        if not self._history.n_hidden:
            return False
        self._history.see_from(None)
        return True

    def _trim(self) -> Trim | None:
        return self._history.trim(self._conversation.n_ctx)

    def _warn(self, text: str, title: str = "Summary") -> None:
        self._conversation.notify(Notice(text, title, "warning"))

    def _use_summary(self, chat_id: int, trim: Trim, text: str | None, problem: str) -> None:
        try:
            if text is None:
                self._warn(f"No summary: {problem}.")
            else:
                self._save(chat_id, trim.context_start, text)
            if self._history.is_shown(chat_id):
                notes = self._history.notes
                notes.remove(notes.find(trim.dropped[-1].id, SUMMARISING))
                self._history.refresh()
                if text is not None:
                    self._conversation.continue_reply()
        except EngineError as error:
            self._warn(str(error), error.title)

    def _save(self, chat_id: int, context_start: int, summary: str) -> None:
        store = self._history.store
        lock = store.lock_chat(chat_id)
        if lock is None:
            raise ChatInUseError(
                "another kvchat process is answering in this chat: the summary is not saved"
            )
        with lock:
            store.update_chat(chat_id, context_start=context_start, summary=summary)
