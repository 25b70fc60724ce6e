"""A user who does what comes to mind: asks, stops, edits, branches, swaps models, deletes."""

import random
import time
from collections.abc import Callable, Sequence

from app.cache import owner_of
from app.chat.conversation import Conversation
from app.chat.snapshot import Phase
from app.store.errors import StoreError
from engine.cache.report import CacheReport
from engine.errors import EngineError
from engine.events import TiersChanged
from engine.process.protocol import CacheAction, EngineClient
from torture.plan import Choice, Journal

PATIENCE_S = 40.0
OPENING_S = 4.0
MAX_MESSAGES = 12
"""Of a line; then a new chat is begun, so that no context gets full."""
FRAME_S = 0.005
WORDS = ("river", "lamp", "stone", "garden", "winter", "engine", "copper", "market", "bridge")
ASKS = (
    "What is a {}?",
    "Tell me about the {} and the {}.",
    "Is the {} older than the {}?",
    "List three things near a {}.",
    "Write one line on a {}, please.",
)
SYSTEM_PROMPT = (
    "You are the keeper of a small museum by the sea. Answer in short, plain sentences. Name what "
    "you know, say when you guess, and never speak of the other visitors of the house."
)


DEEDS: tuple[CacheAction, ...] = ("pin", "unpin", "drop", "verify", "verify", "verify")


class LostError(EngineError):
    """The walk cannot go on: the engine is gone or does not answer."""


class Walker:
    """One user at one application without a screen."""

    def __init__(
        self,
        controller: Conversation,
        client: EngineClient,
        load: Callable[[Choice], None],
        choices: Sequence[Choice],
        rng: random.Random,
        journal: Journal,
    ) -> None:
        self._controller = controller
        self._client = client
        self._load = load
        self._choices = choices
        self._rng = rng
        self._journal = journal
        self.report: CacheReport | None = None
        """The cache's last report since a model was loaded."""

    def start(self) -> None:
        """Load a model and go on with what was talked about last, if there is something."""
        self._swap()
        chats = self._controller.history.store.list_chats(limit=8)
        if chats:
            self._open(self._rng.choice(chats[:3]).id)
            self._do(self._rng.choice((self._continue, self._ask, self._regenerate)))

    def step(self) -> None:
        """Do one thing."""
        actions: dict[Callable[[], None], int] = {
            self._ask: 6,
            self._new_chat: 3,
            self._ask_and_stop: 3,
            self._ask_and_leave: 2,
            self._regenerate: 3,
            self._edit: 3,
            self._switch_variant: 2,
            self._switch_chat: 5,
            self._continue: 3,
            self._hover: 2,
            self._manage: 2,
            self._delete: 1,
            self._swap: 2,
        }
        self._do(self._rng.choices(list(actions), weights=list(actions.values()))[0])

    def on_events(self, events: Sequence[object]) -> None:
        """Remember the cache's report."""
        for event in events:
            if isinstance(event, TiersChanged):
                self.report = event.report

    # --- what a user does ---

    def _ask(self) -> None:
        if self._is_long():
            self._controller.new_chat()
        if self._controller.can_ask:
            self._controller.send(self._question())
            self._finish()

    def _ask_and_stop(self) -> None:
        if self._controller.can_ask and not self._is_long():
            self._controller.send(self._question())
            self._wait_a_moment(0.6)
            self._controller.stop()
            self._finish()

    def _ask_and_leave(self) -> None:
        if self._controller.can_ask and not self._is_long():
            self._controller.send(self._question())
            self._wait_a_moment(0.3)
            self._switch_chat()
            self._finish()

    def _new_chat(self) -> None:
        self._controller.new_chat()
        self._ask()

    def _regenerate(self) -> None:
        if self._controller.can_ask and self._controller.regenerate():
            self._finish()

    def _continue(self) -> None:
        if self._controller.can_ask and self._controller.continue_reply():
            self._finish()

    def _edit(self) -> None:
        questions = [each for each in self._messages() if each[1] == "user"]
        if self._controller.can_ask and questions:
            self._controller.edit(self._rng.choice(questions)[0], self._question())
            self._finish()

    def _switch_variant(self) -> None:
        for message_id, _ in self._messages():
            if self._controller.switch_variant(message_id, self._rng.choice((-1, 1))):
                return

    def _switch_chat(self) -> None:
        chats = self._controller.history.store.list_chats(limit=12)
        if chats:
            self._open(self._rng.choice(chats).id)

    def _hover(self) -> None:
        chats = self._controller.history.store.list_chats(limit=12)
        if chats:
            self._controller.prefetch(self._rng.choice(chats).id)

    def _manage(self) -> None:
        if self.report is None or not self.report.entries:
            return
        key = self._rng.choice(self.report.entries).key
        action = self._rng.choice(DEEDS)
        self._client.manage_cache(action, key)

    def _delete(self) -> None:
        store = self._controller.history.store
        chats = [chat.id for chat in store.list_chats(limit=40)[6:]]
        if chats:
            chosen = self._rng.choice(chats)
            store.delete_chat(chosen)
            self._client.forget_owner(owner_of(chosen))

    def _swap(self) -> None:
        self.report = None
        self._load(self._rng.choice(self._choices))
        self._wait(lambda: self._controller.loaded is not None, "the model was not loaded")
        if self._rng.random() < 0.85:
            # A question that comes before the tiers are open finds nothing there.
            self._wait_at_most(lambda: self.report is not None, OPENING_S)

    # --- how ---

    def _do(self, action: Callable[[], None]) -> None:
        self._journal.tell("step", action=action.__name__.strip("_"))
        try:
            action()
        except StoreError as error:
            # As on the screen: said, and on with the next thing. Another process may have deleted
            # the chat meanwhile.
            self._journal.tell("refused", message=str(error))
            self._controller.new_chat()

    def _open(self, chat_id: int) -> None:
        self._controller.open_chat(chat_id)
        if self._rng.random() < 0.5:
            self._controller.prefetch(chat_id)
            self._wait_a_moment(0.2)

    def _question(self) -> str:
        return self._rng.choice(ASKS).format(*self._rng.sample(WORDS, 2))

    def _messages(self) -> list[tuple[int, str]]:
        history = self._controller.history
        if history.head_id is None or history.is_read_only:
            return []
        return [(message.id, message.role) for message in history.store.path_to(history.head_id)]

    def _is_long(self) -> bool:
        return len(self._messages()) >= MAX_MESSAGES

    def _finish(self) -> None:
        self._wait(lambda: not self._controller.is_replying, "a reply did not end")

    def _wait_a_moment(self, most_s: float) -> None:
        self._wait_at_most(lambda: False, self._rng.uniform(0.0, most_s))

    def _wait_at_most(self, is_done: Callable[[], bool], limit_s: float) -> bool:
        end = time.monotonic() + limit_s
        while not is_done():
            if time.monotonic() > end:
                return False
            self._controller.poll()
            time.sleep(FRAME_S)
        return True

    def _wait(self, is_done: Callable[[], bool], complaint: str) -> None:
        def is_over() -> bool:
            return is_done() or not self._has_engine()

        if not self._wait_at_most(is_over, PATIENCE_S):
            raise LostError(f"{complaint} in {PATIENCE_S:.0f} s")
        if not is_done():
            # Why it ended is told a little later, and not at all once the client is closed.
            self._wait_at_most(lambda: self._controller.meters.phase is Phase.STOPPED, PATIENCE_S)
            raise LostError("the engine is gone")

    def _has_engine(self) -> bool:
        return self._client.is_alive or self._client.is_busy
