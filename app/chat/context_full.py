"""What a user can choose where the context is full; nothing is dropped without that."""

from dataclasses import dataclass
from functools import partial

from app.cache.cached_chats import owner_of
from app.chat.conversation import Conversation
from app.chat.entries import Speaker, is_out_of_room
from app.chat.trimming import MAX_KEPT, Room, Summariser, n_tokens, summary_request
from app.chat.update import Notice
from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class ContextFullOptions:
    """What can be done now, in numbers."""

    n_ctx: int
    n_dropped: int
    """Messages that the model would no longer see; 0 where no turn can go."""
    can_branch: bool
    """Whether the last question can be asked in a new chat: not where it is alone here too."""
    can_take_back: bool
    """Whether the last question goes back to the composer when nothing is done."""
    can_grow: bool = False
    """Whether the model was trained on more tokens than the context has."""


class ContextFull:
    """Makes room in the shown chat of a controller, in the way that the user chose."""

    def __init__(self, controller: Conversation) -> None:
        self._controller = controller
        self._history = controller.history

    # --- what there is to choose ---

    def is_needed(self) -> bool:
        """Whether the chat ends with a reply without room, and there is no more of it now.

        A larger context may have been loaded since, or what the model sees have been cut.
        """
        last = self._history.unfinished()
        loaded = self._controller.loaded
        if last is None or loaded is None or not is_out_of_room(last):
            return False
        seen = self._history.seen()
        return sum(map(n_tokens, seen)) > (1 + MAX_KEPT) / 2 * loaded.n_ctx

    def options(self) -> ContextFullOptions:
        """Give what can be done."""
        room = self._room()
        path = self._history.seen()
        return ContextFullOptions(
            n_ctx=self._n_ctx,
            n_dropped=len(room.dropped) if room else 0,
            can_branch=any(message.role == "user" for message in path[1:]),
            can_take_back=self._controller.refused is not None,
            can_grow=self._controller.can_have_a_larger_context,
        )

    # --- doing it ---

    def shift(self) -> None:
        """Let the model see the chat from a later question on, and go on.

        Raises:
            StoreError: If it could not be saved.
            CannotContinueError: If the reply cannot go on.
        """
        room = self._room()
        if room is not None:
            self._history.see_from(room.kept_from)
            self._controller.continue_reply()

    def summarise(self) -> None:
        """Let the model write a summary of what has to go, put that in its place, and go on."""
        room, chat, loaded = self._room(), self._history.chat, self._controller.loaded
        if room is None or chat is None or loaded is None:
            return
        request, n_left_out = summary_request(
            self._history.path_before(room.kept_from),
            system_prompt=self._history.system_prompt,
            kept_from=chat.kept_from,
            summary=chat.summary,
            n_ctx=loaded.n_ctx,
            owner=owner_of(chat.id),
        )
        if n_left_out:
            self._tell(f"The oldest {n_left_out} messages are too long for the summary too.")
        self._remark(room, "The model summarises what is above: esc stops it.")
        done = partial(self._take_summary, chat.id, room)
        self._controller.lease = Summariser(self._controller.client, request, done)

    def branch_off(self) -> None:
        """Ask the last question in a new chat with the same system prompt; this one stays.

        Raises:
            StoreError: If the question could not be saved.
        """
        question = self._history.last(Speaker.USER)
        chat = self._history.chat
        if question is None or chat is None:
            return
        self._controller.take_back_refused(gives_text=False)
        self._controller.new_chat()
        self._history.begin_like(chat)
        self._controller.send(question.content)

    def see_all(self) -> bool:
        """Let the model see the whole chat again; False where it does.

        Raises:
            StoreError: If it could not be saved.
        """
        if not self._history.n_hidden or self._history.is_read_only:
            return False
        self._history.see_from(None)
        self._controller.refresh()
        return True

    # --- helpers ---

    @property
    def _n_ctx(self) -> int:
        loaded = self._controller.loaded
        return loaded.n_ctx if loaded else 0

    def _room(self) -> Room | None:
        return self._history.room(self._n_ctx)

    def _remark(self, room: Room, text: str) -> None:
        self._controller.toggle_note(room.dropped[-1].id, text)

    def _tell(self, text: str, title: str = "Summary") -> None:
        self._controller.tell(Notice(text, title, "warning"))

    def _take_summary(self, chat_id: int, room: Room, text: str | None, problem: str) -> None:
        try:
            if text is None:
                self._tell(f"There is no summary: {problem}.")
            else:
                self._history.store.set_kept_from(chat_id, room.kept_from)
                self._history.store.set_summary(chat_id, text)
            if self._history.is_shown(chat_id):
                self._history.forget_remarks(room.dropped[-1].id)
                self._controller.refresh()
                if text is not None:
                    self._controller.continue_reply()
        except EngineError as error:
            self._tell(str(error), error.title)
