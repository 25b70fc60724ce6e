"""The list of faults: a folder of snapshots is damaged, asked, and must not answer wrongly."""

import itertools
import os
import random
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.events import (
    Event,
    Failed,
    Finished,
    Loaded,
    PromptReady,
    TiersChanged,
    TokensCommitted,
    WorkerStopped,
)
from engine.process.blocking_client import BlockingClient, EngineTimeoutError
from engine.process.client import WorkerClient
from engine.requests import GenerationRequest, Message
from torture import damage
from torture.damage import Damage, make_read_only, small_disk, small_files
from torture.ledger import Ledger, Tally
from torture.oracle import Asked, Judge
from torture.plan import ENVIRONMENT, MIB, Choice, Plan
from torture.rounds import LOG_FAULTS, Home, Rounds
from torture.walk import SYSTEM_PROMPT

SMALL_DISK_BYTES = 3 * MIB
SMALL_HOME_BYTES = 6 * MIB
SMALL_FILE_BYTES = 100_000
QUESTIONS = (
    "What is kept in a lighthouse?",
    "Who winds the clock of the tower?",
    "And what does the keeper eat in winter?",
)
PATIENCE_S = 60.0
MAX_TOKENS = 10
WORKER = (sys.executable, "-P", "-m", "torture.worker")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to a folder before an engine opens it, or while it is open."""

    name: str
    do: Damage
    n_times: int = 1
    is_told: bool = False
    """Whether the log must say why less is reused."""
    while_open: bool = False


FAULTS = (
    Fault("nothing is damaged", damage.nothing),
    Fault("files cut anywhere", damage.truncate, 4, is_told=True),
    Fault("files cut in their heads", damage.truncate_head, 3, is_told=True),
    Fault("one byte missing at the end", damage.truncate_one, 2),
    Fault("empty files", damage.empty, is_told=True),
    Fault("longer files", damage.grow, is_told=True),
    Fault("a bit of each head flipped", damage.flip_head, 5, is_told=True),
    Fault("a bit of each payload flipped", damage.flip_payload, 5, is_told=True),
    Fault("files under each other's keys", damage.swap_keys, is_told=True),
    Fault("halves of other files", damage.swap_payloads, is_told=True),
    Fault("no table", damage.lose_index),
    Fault("noise for a table", damage.break_index, is_told=True),
    Fault("a table of another version", damage.be_of_another_version, is_told=True),
    Fault("every second file deleted", damage.lose_some),
    Fault("files deleted while open", damage.lose_some, while_open=True),
    Fault("files cut while open", damage.truncate, 2, while_open=True),
    Fault("bits flipped while open", damage.flip_payload, 2, while_open=True),
    Fault("folder deleted", damage.lose_all),
    Fault("folder deleted while open", damage.lose_all, while_open=True),
    Fault("a file in the folder's place", damage.be_a_file),
    Fault("files of others among them", damage.litter),
)


@dataclass(slots=True)
class Engine:
    """A worker whose end, failures and answers are looked at."""

    plan: Plan
    name: str
    tally: Tally
    notes: list[str] = field(default_factory=list)
    """What the cache said was wrong."""
    is_open: bool = False
    _client: WorkerClient | None = None
    _waiting: BlockingClient | None = None

    def start(self) -> None:
        """Load the plan's first model, and wait until the tiers are open or refused."""
        os.environ.update(
            {name: value for name, value in self.plan.environment().items()
             if name == ENVIRONMENT}
        )  # fmt: skip
        self._client = WorkerClient(
            log_path=self.plan.worker_log, cache=self.plan.cache_settings(), command=WORKER
        )
        self._waiting = BlockingClient(self._client)
        self._client.load(self.plan.choices[0].configuration())
        self._until(Loaded)
        self._until(TiersChanged)

    def ask(self, owner: str, messages: Sequence[Message]) -> tuple[Asked, Message]:
        """What was asked and answered, and the answer as a message."""
        assert self._client is not None
        request = GenerationRequest(messages=tuple(messages), max_tokens=MAX_TOKENS, owner=owner)
        self._client.generate(request)
        asked = Asked(self.plan.choices[0].name, request.messages)
        finished: Finished | None = None
        for event in self._until(Finished):
            match event:
                case TokensCommitted():
                    asked.tokens += [token.token for token in event.tokens]
                    asked.margins += [token.margin or 0.0 for token in event.tokens]
                case PromptReady():
                    asked.n_hot, asked.n_warm = event.n_hot, event.n_warm
                    asked.n_cold, asked.n_prompt = event.n_cold, event.n_prompt
                case Finished():
                    finished = event
                case _:
                    pass
        if finished is None:
            return asked, Message("assistant", "")
        said = Message("assistant", finished.text, finished.token_ids, finished.vocabulary_id)
        return asked, said

    def prefetch(self, messages: Sequence[Message]) -> None:
        """Ask for what is kept of a conversation to be brought into memory."""
        assert self._client is not None
        self._client.prefetch(messages)

    def clear(self) -> None:
        """Ask for everything that is kept to be dropped."""
        assert self._client is not None
        self._client.manage_cache("clear")

    def close(self) -> None:
        """End it, and look at how that went."""
        assert self._client is not None
        process = self._client._process
        self._note(self._client.poll(0.2))
        self._client.close()
        code = None if process is None else process.popen.wait()
        if code != 0:
            self.tally.blame("crash", self.name, f"the worker ended with {code}")
        log = self.plan.worker_log
        said = log.read_text(errors="replace") if log.exists() else ""
        for fault in LOG_FAULTS:
            if fault in said:
                at = said.index(fault)
                self.tally.blame("log", self.name, f"the worker said {said[at : at + 800]!r}")

    def _until(self, last: type[Event]) -> list[Event]:
        """The events up to one of a type, or up to the end of the engine."""
        assert self._waiting is not None
        events: list[Event] = []
        try:
            for event in self._waiting.events(PATIENCE_S):
                self._note([event])
                events.append(event)
                if isinstance(event, last | WorkerStopped | Failed):
                    break
        except EngineTimeoutError:
            self.tally.blame("hang", self.name, f"no {last.__name__} in {PATIENCE_S:.0f} s")
        return events

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Failed() | WorkerStopped():
                    self.tally.blame("crash", self.name, f"{event.title}: {event.message}")
                case TiersChanged(report):
                    self.is_open = self.is_open or len(report.tiers) > 1
                    self.notes += [note.text for note in report.notes if note.is_problem]
                case _:
                    pass


class Faults:
    """A home that was talked in, and copies of it that are damaged."""

    def __init__(self, choices: Sequence[Choice], folder: Path, tally: Tally) -> None:
        self._choices = tuple(dict.fromkeys(choices))
        self._folder = folder
        self._tally = tally
        self._judge = Judge(self._choices, tally)
        self._n_homes = 0
        self._base = self._home(Path(folder / "base"), self._choices[0])
        self._chats = {choice: self._talk(choice) for choice in self._choices}

    def run(self, fault: Fault, choice: Choice, rng: random.Random) -> None:
        """Damage a copy, ask, and look at answer, log and end."""
        engine = self._engine(choice, fault.name)
        shutil.copytree(self._base.states.parent, engine.plan.states.parent, dirs_exist_ok=True)
        if not fault.while_open:
            fault.do(engine.plan.states, rng)
        engine.start()
        if fault.while_open:
            fault.do(engine.plan.states, rng)
        n_found = self._go_on(engine, choice)
        if fault.do is damage.nothing and not n_found:
            self._tally.blame("answer", engine.name, "nothing was restored from a whole folder")
        engine.close()
        if fault.is_told and not n_found and not engine.notes:
            self._tally.blame("log", engine.name, "nothing was restored, and nothing says why")
        self._tally.add("faults made")
        self._tell(engine, n_found)

    def run_other_build(self, choice: Choice) -> None:
        """Let another build of llama.cpp keep states, and put them in the place of ours."""
        other = self._engine(choice, "another build")
        other.plan = replace(other.plan, sabotage="build")
        shutil.copytree(self._base.states.parent, other.plan.states.parent, dirs_exist_ok=True)
        ours = [path.name for path in damage.snapshots(other.plan.states)]
        other.start()
        if self._go_on(other, choice):
            self._tally.blame("answer", other.name, "a state of another build was restored")
        other.close()
        left = {path.name: path for path in damage.snapshots(other.plan.states)}
        if not left.keys() >= set(ours):
            self._tally.blame("answer", other.name, "it deleted the states of this build")
        mine = self._engine(choice, "states of another build under our names")
        shutil.copytree(self._base.states.parent, mine.plan.states.parent, dirs_exist_ok=True)
        theirs = [path for name, path in left.items() if name not in ours]
        for name, path in zip(ours, itertools.cycle(theirs), strict=False):
            shutil.copy(path, mine.plan.states / name)
        mine.start()
        if self._go_on(mine, choice):
            self._tally.blame("answer", mine.name, "a state of another build was restored")
        mine.close()
        self._tally.add("faults made", 2)

    def run_full(self, choice: Choice) -> None:
        """Let the disk of the snapshots be full, and then read-only."""
        for name, is_read_only in (("the disk is full", False), ("the disk is read-only", True)):
            engine = self._engine(choice, name)
            with small_disk(engine.plan.states, SMALL_DISK_BYTES) as is_mounted:
                if not is_mounted:
                    self._tally.add("faults not made: disks cannot be mounted here (no root)")
                    return
                if is_read_only:
                    make_read_only(engine.plan.states)
                self._talk_a_while(engine, choice)
                self._expect_notes(engine)

    def run_small_files(self, choice: Choice) -> None:
        """Let no file grow beyond a limit, which a disk that is full answers alike."""
        engine = self._engine(choice, "no file may grow")
        with small_files(SMALL_FILE_BYTES):
            self._talk_a_while(engine, choice)
        self._expect_notes(engine)

    def run_two(self, choice: Choice) -> None:
        """Let two engines use one folder at once, and one of them clear it under the other."""
        first, second = (self._engine(choice, f"two at once, {n}") for n in (1, 2))
        second.plan = replace(second.plan, home=first.plan.home)
        shutil.copytree(self._base.states.parent, first.plan.states.parent, dirs_exist_ok=True)
        first.start()
        second.start()
        for round_number in range(3):
            for engine in (first, second):
                self._go_on(engine, choice)
                self._ask(engine, f"chat:{round_number}", self._opening(f"Hello {round_number}."))
            first.prefetch(self._chats[choice])
            second.clear()
        first.close()
        second.close()
        self._tally.add("faults made")

    def run_full_home(self, choice: Choice, rng: random.Random) -> None:
        """Walk in a home whose whole disk is full: chats, logs and snapshots."""
        place = self._folder / "full-home"
        with small_disk(place, SMALL_HOME_BYTES) as is_mounted:
            if not is_mounted:
                self._tally.add("faults not made: disks cannot be mounted here (no root)")
                return
            home = Home(place, (choice,), Ledger(), journals=self._folder / "full-journals")
            for _ in range(3):
                Rounds(self._tally, self._judge, rng).live(
                    home, [home.plan(rng.randrange(2**32))], kills=False
                )
        self._tally.add("faults made")

    def close(self) -> None:
        """Wait for the last comparison."""
        self._judge.close()

    def _talk(self, choice: Choice) -> tuple[Message, ...]:
        """Talk in the base home and give the conversation."""
        engine = Engine(replace(self._base, choices=(choice,)), "base", self._tally)
        engine.start()
        messages = self._conversation(engine)
        engine.close()
        return messages

    def _conversation(self, engine: Engine) -> tuple[Message, ...]:
        messages: tuple[Message, ...] = (Message("system", SYSTEM_PROMPT),)
        for question in QUESTIONS[:2]:
            messages = (*messages, Message("user", question))
            messages = (*messages, self._ask(engine, "chat:1", messages)[1])
        return messages

    def _talk_a_while(self, engine: Engine, choice: Choice) -> None:
        engine.start()
        self._conversation(engine)
        for number in range(4):
            self._ask(engine, f"chat:{2 + number}", self._opening(f"Name {3 + number} birds."))
        self._go_on(engine, choice)
        engine.close()
        self._tally.add("faults made")
        self._tell(engine, 0)

    def _expect_notes(self, engine: Engine) -> None:
        if not engine.notes:
            self._tally.blame("log", engine.name, "nothing could be written, and nothing says so")

    def _go_on(self, engine: Engine, choice: Choice) -> int:
        """Ask the next question of the base's chat; gives the tokens that were restored."""
        messages = (*self._chats[choice], Message("user", QUESTIONS[2]))
        n_restored, _ = self._ask(engine, "chat:1", messages)
        self._ask(engine, "chat:9", self._opening("What is the tide?"))
        return n_restored

    def _ask(self, engine: Engine, owner: str, messages: Sequence[Message]) -> tuple[int, Message]:
        asked, said = engine.ask(owner, messages)
        self._judge.take(asked, engine.name)
        return asked.n_warm + asked.n_cold, said

    def _engine(self, choice: Choice, name: str) -> Engine:
        self._n_homes += 1
        plan = self._home(self._folder / f"fault-{self._n_homes}", choice)
        return Engine(plan, f"{name} ({choice.name})", self._tally)

    def _home(self, path: Path, choice: Choice) -> Plan:
        plan = Plan(str(path), str(path / "journal"), 0, (choice,))
        path.mkdir(parents=True)
        return plan

    def _opening(self, question: str) -> tuple[Message, ...]:
        return (Message("system", SYSTEM_PROMPT), Message("user", question))

    def _tell(self, engine: Engine, n_restored: int) -> None:
        said = f"; {engine.notes[0]}" if engine.notes else ""
        print(f"  {engine.name}: {n_restored} tokens restored{said}", flush=True)


def run_faults(choices: Sequence[Choice], folder: Path, tally: Tally, rng: random.Random) -> None:
    """Make every fault, of the first model, and the damages of the sliding-window one too."""
    faults = Faults(choices, folder, tally)
    first, last = choices[0], choices[-1]
    for fault in FAULTS:
        for number in range(fault.n_times):
            faults.run(fault, last if number == fault.n_times - 1 > 0 else first, rng)
    others: tuple[Callable[[Choice], None], ...] = (
        faults.run_other_build, faults.run_full, faults.run_small_files, faults.run_two,
    )  # fmt: skip
    for other in others:
        other(first)
    faults.run_full_home(first, rng)
    faults.close()
