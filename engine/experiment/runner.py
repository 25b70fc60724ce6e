"""Runs arms on prompts, in blocks with plain decoding, and stores every prompt as it is done."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.configuration import Configuration, ControllerName, PredictorName
from engine.errors import WorkerError
from engine.events import (
    Event,
    Finished,
    FinishReason,
    GenerationStats,
    RoundFinished,
    SpeculationChanged,
    TokensCommitted,
)
from engine.experiment.arm import PLAIN, Arm, ExperimentError
from engine.experiment.gain import row_of
from engine.experiment.prompts import BenchPrompt
from engine.experiment.records import (
    Exclusion,
    PromptRecord,
    Results,
    Row,
    Sample,
    check_speed,
)
from engine.experiment.verdict import token_s
from engine.process.blocking_client import BlockingClient, EngineStoppedError, RequestFailedError
from engine.requests import GenerationRequest, Message
from engine.speculation.stats import first_divergence

MAX_CRASHES = 3
"""Prompts in a row on which the engine may die."""
MIN_TOKENS = 16
"""Replies that end earlier are too short to time."""
LOOP_TIMES, MIN_LOOP = 3, 24
"""Repetitions, and tokens of them, from which a reply counts as a loop: lists repeat too."""
N_WARM_UP = 2
"""Tokens of the reply that brings a prompt into the cache before anything is timed."""
OTHER_PROMPT = "."


class Unit(NamedTuple):
    """A prompt at a temperature."""

    prompt: BenchPrompt
    temperature: float

    @property
    def key(self) -> tuple[str, str, float, str]:
        """Key of the unit's record in the results."""
        return self.prompt.set_name, self.prompt.name, self.temperature, self.prompt.digest


class ArmReply:
    """One reply of an arm, complete or running."""

    def __init__(self, arm: Arm) -> None:
        self.arm = arm
        self.committed: list[TokensCommitted] = []
        self.stats = GenerationStats()
        self.note: str | None = None
        """Why it drafts in another way than its arm, or not at all."""
        self.finished: Finished | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        if self.finished is not None:
            return self.finished.text
        return "".join(event.text for event in self.committed)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the finished reply."""
        return () if self.finished is None else self.finished.token_ids

    @property
    def decode_tps(self) -> float | None:
        """Tokens per second after the prefill."""
        return 1 / token_s(self.stats) if self.stats.n_emitted and self.stats.decode_s else None

    def handle(self, event: Event) -> None:
        """Count one event of this reply."""
        match event:
            case TokensCommitted():
                self.committed.append(event)
            case RoundFinished():
                self.stats = self.stats.with_rounds((event,))
            case SpeculationChanged(note=note):
                self.note = note
            case Finished(stats=stats):
                self.finished, self.stats = event, stats
            case _:
                pass


@dataclass(slots=True)
class Runner:
    """Measures prompts."""

    engine: BlockingClient
    """Client of an engine that has loaded the model."""
    configuration: Configuration
    """Configuration of the model; arms may change parts of it."""
    arms: Sequence[Arm]
    """Compared with plain decoding."""
    show: Callable[[str, float], None]
    """Called with the progress in words, and the finished share, after each reply."""
    report: Callable[[PromptRecord], None]
    """Called with the record of each prompt."""
    n_blocks: int = 1
    """Blocks of each arm per prompt."""
    n_tokens: int = 128
    """Maximum tokens of a reply."""
    seed: int = 1
    """Sampling seed of the first block; it is increased by 1 for each further block."""
    _n_done: int = 0
    _n_replies: int = 1

    def run(
        self, units: Sequence[Unit], results: Results, save: Callable[[Results], None]
    ) -> Results:
        """Measure the units that `results` has no replies of; those that failed are tried again.

        Raises:
            WorkerError: the engine cannot be started again, or died on `MAX_CRASHES` prompts in a
                row; what was measured is saved.
        """
        done = {record.key for record in results.prompts if record.failure is None}
        to_do = [(index, unit) for index, unit in enumerate(units) if unit.key not in done]
        n_each = self.n_blocks * (3 * len(self.arms) + 1)
        self._n_replies = len(to_do) * n_each
        n_crashes = 0
        for number, (index, unit) in enumerate(to_do):
            self._n_done = number * n_each
            start_s = time.perf_counter()
            is_crash = False
            try:
                record = self.measure(unit, index)
            except (RequestFailedError, ExperimentError) as error:
                is_crash = isinstance(error, EngineStoppedError)
                record = PromptRecord(*unit.key, failure=f"{error.title}: {error}")
            others = (each for each in results.prompts if each.key != unit.key)
            elapsed_s = results.elapsed_s + time.perf_counter() - start_s
            results = replace(results, prompts=(*others, record), elapsed_s=elapsed_s)
            save(results)
            self.report(record)
            n_crashes = n_crashes + 1 if is_crash else 0
            if n_crashes >= MAX_CRASHES:
                raise WorkerError(
                    f"the engine crashed on {n_crashes} prompts in a row ({record.failure}): "
                    "earlier measurements are saved; try another --arm, or see `kvchat doctor`"
                )
        return results

    def measure(self, unit: Unit, index: int = 0) -> PromptRecord:
        """All replies to a prompt; its index rotates the order of the arms."""
        self._reply(self._request(unit, self.seed, N_WARM_UP), PLAIN)
        answers = [
            [self._timed(unit, block, arm) for arm in row_order(self.arms, index + block)]
            for block in range(self.n_blocks)
        ]
        first = answers[0][0]
        is_ended = first.finished is not None and first.finished.reason is FinishReason.END
        is_short = is_ended and len(first.token_ids) < MIN_TOKENS
        excluded: Exclusion | None = "short" if is_short else None
        notes = (each.note for row in answers for each in row if each.note is not None)
        return PromptRecord(
            *unit.key,
            n_prompt=first.stats.n_prompt or 0,
            text=first.text,
            excluded="loop" if ends_in_loop(first.token_ids) else excluded,
            rows=tuple(map(_row, answers)),
            notes=tuple(dict.fromkeys(notes)),
        )

    def _timed(self, unit: Unit, block: int, arm: Arm) -> ArmReply:
        if arm.uses_draft_model and PredictorName.DRAFT in self.engine.last_loaded.predictors:
            # In a chat every prompt is new to a draft model, and reading it is a cost of drafting.
            changes = {"predictor": PredictorName.DRAFT, "controller": ControllerName.FIXED}
            other = GenerationRequest(raw_prompt=OTHER_PROMPT, max_tokens=N_WARM_UP)
            self._reply(other, Arm("", {**changes, "n_draft": 1}))
        answer = self._reply(self._request(unit, self.seed + block, self.n_tokens), arm)
        self._n_done += 1
        text = f"reply {self._n_done} of {self._n_replies}, {unit.prompt.name}, {arm.name}"
        self.show(text, self._n_done / self._n_replies)
        return answer

    def _reply(self, request: GenerationRequest, arm: Arm) -> ArmReply:
        answer = ArmReply(arm)
        for event in self.engine.reply(request, arm.of(self.configuration.speculation)):
            answer.handle(event)
        return answer

    def _request(self, unit: Unit, seed: int, n_tokens: int) -> GenerationRequest:
        text, has_template = unit.prompt.text, self.engine.last_loaded.has_chat_template
        return GenerationRequest(
            messages=(Message("user", text),) if has_template else (),
            raw_prompt=None if has_template else text,
            sampling=replace(self.configuration.sampling, temperature=unit.temperature),
            max_tokens=n_tokens,
            seed=seed,
        )


def row_order(arms: Sequence[Arm], shift: int) -> list[Arm]:
    """Plain decoding around two runs of each arm: plain, B, B, plain, C, C, plain.

    Each arm has a block A B B A, which favours neither side of a machine that becomes slower.
    `shift` rotates the arms, so that each comes first somewhere.
    """
    start = shift % len(arms)
    turned = (*arms[start:], *arms[:start])
    return row_of(PLAIN, turned)


def _row(answers: Sequence[ArmReply]) -> Row:
    plain = answers[0].token_ids
    for each in answers:
        check_speed(each.stats)
    return tuple(
        Sample(each.arm.name, each.stats, first_divergence(plain, each.token_ids))
        for each in answers
    )


def ends_in_loop(token_ids: Sequence[int]) -> bool:
    """Whether a reply ends with a period repeated `LOOP_TIMES` times, `MIN_LOOP` tokens or more.

    Such text is useless, and lookup would gain most on it.
    """
    for period in range(1, len(token_ids) // LOOP_TIMES + 1):
        n = max(LOOP_TIMES * period, MIN_LOOP)
        tail = token_ids[-n:]
        if len(tail) == n and all(tail[i] == tail[i - period] for i in range(period, n)):
            return True
    return False
