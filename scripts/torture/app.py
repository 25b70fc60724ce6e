"""The application without its screen, walked through at random until it ends or is killed."""

import random
import sys
from pathlib import Path

from app.chat.conversation import Conversation
from engine.configuration import SamplingSettings
from engine.events import Event
from torture.aim import aim_in_app
from torture.journal import Journal
from torture.plan import Choice, Plan, plan_of_environment
from torture.walk import SYSTEM_PROMPT, LostError, Walker
from torture.watched import PromisingStore, WatchedClient

MAX_TOKENS = 14
N_RESTARTS = 2
WORKER = (sys.executable, "-P", "-m", "torture.worker")


class Application:
    """What the screen is made of, and a walker in the screen's place."""

    def __init__(self, plan: Plan, journal: Journal) -> None:
        rng = random.Random(plan.seed)
        self._journal = journal
        self._client = _Client(plan, journal)
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


class _Client(WatchedClient):
    """Passes events on to the walker too."""

    def __init__(self, plan: Plan, journal: Journal) -> None:
        self.walker: Walker | None = None
        super().__init__(
            log_path=plan.worker_log,
            cache=plan.cache_settings(),
            command=WORKER,
            journal=journal,
        )

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        """Give the events, once the walker has seen them."""
        events = super().poll(timeout_s)
        if self.walker is not None:
            self.walker.on_events(events)
        return events


def main() -> None:
    """Live one life."""
    plan = plan_of_environment()
    journal = Journal(Path(plan.journal))
    Application(plan, journal).run()


if __name__ == "__main__":
    main()
