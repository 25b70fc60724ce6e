"""A closed loop of chats at one server: how quick it is for many users at once.

Each user asks, waits for the whole reply and asks again, with all that was said before; so a server
is never asked for more at once than there are users.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from engine.backends.server.session import ServerSession
from engine.configuration import SamplingSettings
from engine.events import Finished
from engine.requests import Cancellation, GenerationRequest, Message

TOPICS = ("bread", "trains", "rain", "chess", "bees", "islands", "clocks", "soup")
QUESTIONS = (
    "Write three sentences about {topic}.",
    "Say the same once more in other words.",
    "Now name five words that have to do with it.",
    "Which of them matters most, and why?",
)
KNEE = 0.1
"""A user more is no gain where throughput grows by less than this share of what it should."""


@dataclass(frozen=True, slots=True)
class UserTurn:
    """One reply of one user, as it was measured here."""

    user: int
    first_s: float | None
    elapsed_s: float
    n_tokens: int
    n_prompt: int = 0
    n_reused: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What some users at once got."""

    n_users: int
    elapsed_s: float
    turns: tuple[UserTurn, ...]

    @property
    def n_failed(self) -> int:
        """Replies that failed."""
        return sum(bool(turn.fault) for turn in self.turns)

    @property
    def tps(self) -> float:
        """Tokens a second of all users together."""
        return sum(turn.n_tokens for turn in self.turns) / self.elapsed_s if self.elapsed_s else 0.0

    def first_s(self, share: float) -> float | None:
        """The wait for the first token that this share of replies stayed within."""
        return percentile([t.first_s for t in self.turns if t.first_s is not None], share)

    def reply_tps(self, share: float) -> float | None:
        """Tokens a second that this share of replies had at least, from the first token on."""
        found = [
            (turn.n_tokens - 1) / (turn.elapsed_s - turn.first_s)
            for turn in self.turns
            if turn.first_s is not None and turn.n_tokens > 1 and turn.elapsed_s > turn.first_s
        ]
        return percentile(found, 1 - share)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How long the loop goes on."""

    n_turns: int
    max_tokens: int
    limit_s: float
    """No reply is asked for behind this time."""


@dataclass(slots=True)
class _User:
    """One of them: what was said, and what came."""

    number: int
    messages: list[Message] = field(default_factory=list)
    turns: list[UserTurn] = field(default_factory=list)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that this share of values does not exceed; None without values."""
    if not values:
        return None
    rank = max(math.ceil(share * len(values)), 1)
    return sorted(values)[rank - 1]


def run_load(session: ServerSession, n_users: int, plan: LoadPlan) -> LoadResult:
    """Let so many users talk at once, each to the end of its turns or of the time.

    Args:
        session: The server; nothing else uses it meanwhile.
        n_users: Users at once.
        plan: When it ends.
    """
    users = [_User(number) for number in range(n_users)]
    elapsed_s = _talk(session, users, plan)
    return LoadResult(n_users, elapsed_s, tuple(turn for user in users for turn in user.turns))


def _talk(session: ServerSession, users: Sequence[_User], plan: LoadPlan) -> float:
    """Let users talk until none has a question; how long it took, in seconds."""
    since = time.monotonic()
    waiting = [(user, _questions(user, plan, since)) for user in users]
    running: list[tuple[_Running, Iterator[GenerationRequest]]] = []
    while True:
        for user, questions in waiting:
            if (asked := next(questions, None)) is not None:
                running.append((_Running(session, user, asked), questions))
        if not running:
            return time.monotonic() - since
        session.step()
        over = [(reply, questions) for reply, questions in running if reply.take()]
        waiting = [(reply.user, questions) for reply, questions in over]
        running = [each for each in running if each not in over]


def _questions(user: _User, plan: LoadPlan, since: float) -> Iterator[GenerationRequest]:
    topic = TOPICS[user.number % len(TOPICS)]
    for turn in range(plan.n_turns):
        if time.monotonic() - since > plan.limit_s:
            return
        text = QUESTIONS[turn % len(QUESTIONS)].format(topic=topic)
        user.messages.append(Message("user", text))
        yield GenerationRequest(
            messages=(
                Message("system", f"You are assistant number {user.number}."),
                *user.messages,
            ),
            sampling=SamplingSettings(),
            max_tokens=plan.max_tokens,
            seed=user.number,
        )


class _Running:
    """One reply under way."""

    def __init__(self, session: ServerSession, user: _User, asked: GenerationRequest) -> None:
        self.user = user
        self._since = time.monotonic()
        self._generation = session.begin(asked, Cancellation())

    def take(self) -> bool:
        """Take what it tells; whether it is over, and then its user has the turn."""
        finished: Finished | None = None
        for event in self._generation.take():
            finished = event if isinstance(event, Finished) else finished
        if not self._generation.is_over:
            return False
        elapsed_s, fault = time.monotonic() - self._since, self._generation.fault
        user = self.user
        if finished is None:
            said = str(fault or "no reply came")
            user.turns.append(UserTurn(user.number, None, elapsed_s, 0, fault=said))
            user.messages.pop()
            return True
        stats = finished.stats
        user.turns.append(
            UserTurn(
                user.number,
                stats.first_token_s,
                elapsed_s,
                stats.n_emitted or 0,
                stats.n_prompt or 0,
                stats.n_reused or 0,
                stats.n_drafted,
                stats.n_accepted,
            )
        )
        user.messages.append(
            Message("assistant", finished.text, finished.token_ids, finished.vocabulary_id)
        )
        return True


def knee_of(results: Sequence[LoadResult]) -> int | None:
    """The number of users behind which more users bring little; None where it was not reached.

    Between two numbers of users, throughput could grow as they do; where it grows by less than
    `KNEE` of that, the smaller number is the knee.
    """
    ordered = sorted(results, key=lambda result: result.n_users)
    for few, many in pairwise(ordered):
        if few.tps <= 0:
            continue
        hoped = many.n_users / few.n_users - 1
        if hoped > 0 and many.tps / few.tps - 1 < KNEE * hoped:
            return few.n_users
    return None
