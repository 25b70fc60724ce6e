"""The application without its screen, walked through at random until it ends or is killed."""

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from app.chat.conversation import Conversation
from app.chat.update import READ_AHEAD
from app.store.chats import ChatStore
from app.store.records import NewTurn, StoredMessage, Turn
from engine.configuration import Configuration, SamplingSettings
from engine.events import (
    Event,
    Failed,
    Finished,
    Loaded,
    OfReply,
    PromptReady,
    TiersChanged,
    TokensCommitted,
    WorkerStopped,
)
from engine.files import FileLock
from engine.process.client import WorkerClient
from engine.requests import GenerationRequest
from torture.kills import aim_in_app
from torture.plan import Choice, Journal, Plan, Sabotage, plan_of_environment
from torture.walk import SYSTEM_PROMPT, LostError, Walker

MAX_TOKENS = 14
N_RESTARTS = 2
WORKER = (sys.executable, "-P", "-m", "torture.worker")
EXIT_S = 15.0


class PromisingStore(ChatStore):
    """Writes down each promise of the store, after it was given."""

    def __init__(
        self, path: Path, journal: Journal, sabotage: Sabotage, *, patience_s: float | None = None
    ) -> None:
        super().__init__(path, patience_s=patience_s)
        self._journal = journal
        self._is_lying = sabotage == "commit"

    def add_turn(self, new: NewTurn) -> Turn:
        """Add a question and the place of its reply as the store does."""
        turn = super().add_turn(new)
        for added in turn.messages:
            self._tell_added(added)
        return turn

    def _tell_added(self, added: StoredMessage) -> None:
        self._journal.tell(
            "added", id=added.id, chat=added.chat_id, role=added.role, content=added.content
        )

    def finish_message(self, ended: StoredMessage) -> StoredMessage | None:
        """End a reply as the store does."""
        content = ended.content[1:] if self._is_lying else ended.content
        stored = super().finish_message(replace(ended, content=content))
        if stored is not None:
            tokens = None if ended.token_ids is None else list(ended.token_ids)
            self._journal.tell(
                "finished", id=ended.id, chat=stored.chat_id, content=ended.content, tokens=tokens
            )
        return stored

    def reopen_message(self, message_id: int) -> None:
        """Let a reply go on as the store does."""
        self._journal.tell("reopening", id=message_id)
        super().reopen_message(message_id)

    def delete_chat(self, chat_id: int, held: FileLock | None = None) -> None:
        """Delete a chat as the store does."""
        self._journal.tell("deleting", chat=chat_id)
        super().delete_chat(chat_id, held)
        self._journal.tell("deleted", chat=chat_id)


class WatchedClient(WorkerClient):
    """Writes down what the engine is asked and what it answers."""

    def __init__(self, plan: Plan, journal: Journal) -> None:
        self.walker: Walker | None = None
        """Sees every event before it is taken."""
        self._journal = journal
        self._n_asked = 0
        self._numbers: dict[int, int] = {}
        """Of the requests under way, by what the application calls their replies."""
        self._choice = ""
        super().__init__(
            log_path=plan.worker_log,
            cache=plan.cache_settings(),
            command=WORKER,
            silence_limit_s=60.0,
        )

    @property
    def worker_pid(self) -> int | None:
        """The engine's process, None while there is none."""
        process = self._process
        return None if process is None else process.popen.pid

    def load_choice(self, choice: Choice) -> Configuration:
        """Note which model comes, and give its configuration."""
        self._choice = choice.name
        return choice.configuration()

    def generate(self, request: GenerationRequest, reply_id: int = 0) -> None:
        """Ask as the client does; what is only read ahead has no answer to judge."""
        if reply_id == READ_AHEAD:
            super().generate(request, reply_id)
            return
        self._n_asked += 1
        self._numbers[reply_id] = self._n_asked
        self._journal.tell(
            "asked",
            number=self._n_asked,
            choice=self._choice,
            owner=request.owner,
            continues=list(request.continues),
            continues_text=request.continues_text,
            messages=[
                [m.role, m.content, None if m.token_ids is None else list(m.token_ids),
                 m.vocabulary_id]
                for m in request.messages
            ],
        )  # fmt: skip
        super().generate(request, reply_id)

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        """The events as the client does."""
        events = super().poll(timeout_s)
        for event in events:
            self._note(event)
        if self.walker is not None:
            self.walker.on_events(events)
        return events

    def close(self) -> None:
        """End the engine as the client does, and note how its process ended."""
        process = self._process
        super().close()
        if process is not None:
            try:
                exit_code = process.popen.wait(EXIT_S)
            except subprocess.TimeoutExpired:
                exit_code = None
            self._journal.tell("closed", pid=process.popen.pid, exit_code=exit_code)

    def _note(self, event: Event) -> None:
        reply_id = event.reply_id if isinstance(event, OfReply) else 0
        event = event.event if isinstance(event, OfReply) else event
        tell, number = self._journal.tell, self._numbers.get(reply_id)
        if reply_id == READ_AHEAD:
            return
        match event:
            case Loaded():
                tell("loaded", choice=self._choice)
            case TokensCommitted() if event.tokens:
                tokens = [token.token for token in event.tokens]
                tell("tokens", number=number, tokens=tokens,
                     margins=[token.margin for token in event.tokens])  # fmt: skip
            case PromptReady():
                tell("reused", number=number, hot=event.n_hot, warm=event.n_warm,
                     cold=event.n_cold, prompt=event.n_prompt)  # fmt: skip
            case Finished():
                tell("done", number=number, reason=event.reason, tokens=list(event.token_ids))
            case Failed():
                tell("failed", title=event.title, message=event.message)
            case WorkerStopped():
                tell("stopped", title=event.title, message=event.message,
                     exit_code=event.exit_code)  # fmt: skip
            case TiersChanged():
                self._note_tiers(event)
            case _:
                pass

    def _note_tiers(self, event: TiersChanged) -> None:
        report = event.report
        if len(report.tiers) > 1:
            self._journal.tell("cache", counts=_counts(event))
        for note in report.notes:
            self._journal.tell("note", text=note.text, is_problem=note.is_problem)


def _counts(event: TiersChanged) -> dict[str, int]:
    counts = event.report.counts
    return {
        "hits": counts.n_hits,
        "misses": counts.n_misses,
        "evictions": counts.n_evictions,
        "promotions": counts.n_promotions,
        "prefetches": counts.n_prefetches,
        "refused": counts.n_refused,
    }


class Application:
    """What the screen is made of, and a walker in the screen's place."""

    def __init__(self, plan: Plan, journal: Journal) -> None:
        rng = random.Random(plan.seed)
        self._journal = journal
        self._client = WatchedClient(plan, journal)
        aim_in_app(plan, journal, lambda: self._client.worker_pid)
        self._store = PromisingStore(plan.database, journal, plan.sabotage)
        for notice in self._store.notices:
            journal.tell("notice", text=notice)
        self._controller = Conversation(
            self._client,
            self._store,
            sampling=SamplingSettings(),
            system_prompt=SYSTEM_PROMPT,
            max_tokens=MAX_TOKENS,
        )
        self._walker = Walker(
            self._controller, self._client, self._load, plan.choices, rng, journal
        )
        self._client.walker = self._walker
        self._n_steps = plan.n_steps

    def run(self) -> None:
        """Walk; an engine that is gone is started again, as the user would."""
        for attempt in range(1 + N_RESTARTS):
            try:
                self._walker.start()
                for _ in range(self._n_steps if attempt == 0 else 1):
                    self._walker.step()
            except LostError as error:
                self._journal.tell("lost", message=str(error))
            else:
                break
        self._controller.close()
        self._store.close()
        self._journal.tell("end")

    def _load(self, choice: Choice) -> None:
        self._controller.load(self._client.load_choice(choice))


def main() -> None:
    """Live one life."""
    plan = plan_of_environment()
    journal = Journal(Path(plan.journal))
    Application(plan, journal).run()


if __name__ == "__main__":
    main()
