"""The search for what a machine likes: one group of settings after the other, within a time.

First two engines with the settings of now are compared: what differs there is noise. Then each
candidate is compared with the best so far, in blocks A B B A of short runs. One that is slower in
the first two blocks is dropped; six decide; twelve where six leave it open. A candidate is taken
where it is quicker beyond that noise. In the end all that was taken is compared with the start once
more, by engines of their own: what was chosen for being quick looks quicker than it is.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median

from engine.configuration import Configuration
from engine.errors import EngineError
from engine.tuning.gain import N_DECIDING, Block, PairedGain, block_ratio, gain_of, joint_ratios
from engine.tuning.outcome import Outcome, TrialProgress, TrialResult, TuningRecord, Verdict
from engine.tuning.timer import EngineTimer, OutOfTimeError, VariantFailedError
from engine.tuning.trials import (
    EVERYTHING,
    TURN,
    Scope,
    SettingGroup,
    Trial,
    Variant,
    Workload,
    WorkloadName,
    WorkloadSizes,
    setting_groups,
    sizes_for,
)

WORTH = 1.03
"""Least gain that a setting is taken for: below it no one notices, and every setting that is not
usual is one more thing to explain."""
MAY_COST = 0.97
"""Slowest that a part of the turn may become for the gain of the whole."""
LOSES = 0.8
"""A candidate whose first block is below it is dropped at once."""
HOPELESS = 3.0
"""Times as long from which one run of a candidate says enough: its block is that pair, twice."""
PATIENCE = 6.0
"""Times the longest run of the settings of now, with what it loaded and read before, from which the
first run of a candidate is given up."""
N_FIRST, N_MOST = 2, 12
"""Blocks behind which a candidate is dropped that was slower in all of them, and behind which
nothing is measured again."""
NOISE_SHARE, FINAL_SHARE = 0.5, 0.2
"""Of the time, at most for the first comparison, and kept for the last one."""
LEAST_WAIT_S = 5.0
"""How long a run may take whatever time is left: the time for all may be exceeded by as much."""
CALIBRATING = WorkloadSizes(n_prompt=128, n_written=16, n_deep=256)
NOISE, FINAL = "noise", "all together"

Blocks = Mapping[WorkloadName, Sequence[Block]]


class TuningError(EngineError):
    """Nothing can be measured here."""

    title = "Tuning cannot go on"


class Tuner:
    """Compares candidates on a machine; what a record holds already is not measured again.

    Args:
        start: The configuration of now.
        scope: What is known of model and machine.
        machine: Takes times.
        record: What was measured before; it grows.
        budget_s: Time for everything, what the record has spent included.
        keep: Called with the record after every block.
        clock: Seconds, from any start.
    """

    def __init__(
        self,
        start: Configuration,
        scope: Scope,
        machine: EngineTimer,
        record: TuningRecord,
        *,
        budget_s: float,
        keep: Callable[[TuningRecord], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._scope = scope
        self._machine = machine
        self._record = record
        self._budget_s = budget_s
        self._keep = keep
        self._clock = clock
        self._began_s = clock() - record.spent_s
        self._taken: list[TrialResult] = []
        self._compared: list[TrialResult] = []
        self._block_s: dict[WorkloadName, float] = {}
        self._loaded: set[Variant] = set()
        self._longest_s = 0.0
        """Longest run of the settings of now in this process; 0 where none was needed."""
        self._noise: Blocks = {}
        self._final: Blocks = {}

    def run(self) -> Iterator[TrialProgress | TrialResult]:
        """What happens, as it happens; `outcome` is there when it ends.

        Raises:
            TuningError: the settings of now cannot be measured.
        """
        n_threads = self._start.n_threads or self._scope.n_cores
        # Threads that follow the machine would change while they are measured.
        now = replace(
            self._start,
            n_threads=n_threads,
            n_threads_batch=self._start.n_threads_batch or n_threads,
        )
        sizes = self._sizes(now)
        yield from self._measure_noise(now, sizes)
        names = [each.name for each in setting_groups(now, self._scope, sizes)]
        while names:
            # The best so far changes, and with it what is left to try of the others.
            best = self._with_taken(now)
            waiting = [d for d in setting_groups(best, self._scope, sizes) if d.name in names]
            name = names.pop(0)
            if waiting and waiting[0].name == name:
                yield from self._try(waiting[0], best, sizes)
        yield from self._confirm(now, sizes)

    def outcome(self) -> Outcome:
        """What was found, as far as `run` came.

        Raises:
            TuningError: not even two equal engines were compared.
        """
        sizes, noise = self._record.sizes, self._noise_of(EVERYTHING)
        if sizes is None or noise is None:
            raise TuningError(
                "the time did not suffice for one block of every workload: give more with "
                "--minutes, or tune a smaller model"
            )
        measured = self._final if self._taken else self._noise
        start = _speeds(measured, (0, 3))
        return Outcome(
            start=self._start,
            chosen=self._with_taken(self._start),
            noise=noise,
            compared=tuple(self._compared),
            total=_joint(self._final) if self._taken else None,
            sizes=sizes,
            start_tps=start,
            chosen_tps=_speeds(measured, (1, 2)) if self._taken else start,
            spent_s=self._spent_s,
        )

    @property
    def _spent_s(self) -> float:
        return self._clock() - self._began_s

    @property
    def _left_s(self) -> float:
        return self._budget_s - self._spent_s

    @property
    def _changes(self) -> dict[str, object]:
        return {key: value for each in self._taken for key, value in each.changes.items()}

    def _with_taken(self, now: Configuration) -> Configuration:
        return Trial("", self._changes).of(now)

    # --- before anything is compared ---

    def _sizes(self, now: Configuration) -> WorkloadSizes:
        """How long the runs are, by the speed of one run of each kind."""
        if self._record.sizes is None:
            variant = Variant(replace(now, n_ctx=CALIBRATING.n_ctx))
            try:
                prompt_s = self._seconds(variant, CALIBRATING.workload("prompt"))
                near_s = self._seconds(variant, CALIBRATING.workload("near"))
            except OutOfTimeError as error:
                raise TuningError(f"not even one run ended in the time: {error}") from error
            except VariantFailedError as error:
                raise TuningError(f"the settings of now cannot be measured: {error}") from error
            self._record.sizes = sizes_for(1 / prompt_s, 1 / near_s, self._budget_s, now.n_ctx)
            self._save()
        return self._record.sizes

    def _measure_noise(self, now: Configuration, sizes: WorkloadSizes) -> Iterator[TrialProgress]:
        key = self._key(NOISE, "")
        variants = _variant(now, sizes), _variant(now, sizes, replica=1)
        ends_s = NOISE_SHARE * self._budget_s
        workloads = [sizes.workload(name) for name in EVERYTHING]
        for progress in self._fill(key, variants, workloads, ends_s, least=inf):
            yield replace(progress, setting=NOISE, label="two equal engines")
        if (reason := self._record.failures.get(key)) is not None:
            raise TuningError(f"a second engine with the settings of now failed: {reason}")
        self._noise = self._record.blocks[key]
        self.outcome()  # raises where there is no noise to compare with

    def _noise_of(self, names: Sequence[WorkloadName]) -> PairedGain | None:
        return _joint({name: self._noise.get(name, []) for name in names})

    def _least(self, names: Sequence[WorkloadName]) -> float:
        """The least gain that counts: worth it, and more than two equal engines differ by."""
        noise = self._noise_of(names)
        return max(WORTH, 1.0 if noise is None else 1 + noise.noise)

    # --- candidates ---

    def _try(
        self, group: SettingGroup, best: Configuration, sizes: WorkloadSizes
    ) -> Iterator[TrialProgress | TrialResult]:
        """Compare the candidates of a group with the best so far, and take the best of them."""
        workloads = [sizes.workload(name) for name in group.workloads]
        least = self._least(group.workloads)
        found = []
        for trial in group.trials:
            key = self._key(group.name, trial.label)
            variants = _variant(best, sizes), _variant(trial.of(best), sizes)
            ends_s = (1 - FINAL_SHARE) * self._budget_s
            for progress in self._fill(key, variants, workloads, ends_s, least=least):
                yield replace(progress, setting=group.name, label=trial.label)
            found.append(self._judged(key, group, trial, least))
        quick = [each for each in found if each.verdict == "quicker" and not group.never_taken]
        most = max(quick, key=lambda each: each.gain.median if each.gain else 0.0, default=None)
        for each in found:
            shown = each
            if most is not None and each in quick:
                is_most = each is most
                reason = "" if is_most else f"{most.label} is quicker still"
                shown = replace(each, verdict="taken" if is_most else "quicker", reason=reason)
                self._taken += [shown] if is_most else []
            self._compared.append(shown)
            yield shown

    def _judged(self, key: str, group: SettingGroup, trial: Trial, least: float) -> TrialResult:
        stored = self._record.blocks.get(key, {})
        blocks = {name: stored.get(name, []) for name in group.workloads}
        gain, parts = _joint(blocks), _parts(blocks)
        failure = self._record.failures.get(key)
        verdict, reason = _verdict(failure, gain, parts, least)
        if verdict == "quicker" and group.never_taken:
            reason = group.never_taken
        return TrialResult(
            group.name, trial.label, verdict, reason, gain, parts,
            trial.changes, group.cost,
        )  # fmt: skip

    def _confirm(
        self, now: Configuration, sizes: WorkloadSizes
    ) -> Iterator[TrialProgress | TrialResult]:
        """Compare all that was taken with the start; where that gains nothing, nothing is taken."""
        if not self._taken:
            return
        label = ", ".join(f"{each.setting} {each.label}" for each in self._taken)
        key = self._key(FINAL, "")
        best = self._with_taken(now)
        variants = _variant(now, sizes, replica=2), _variant(best, sizes, replica=2)
        workloads = [sizes.workload(name) for name in EVERYTHING]
        for progress in self._fill(key, variants, workloads, self._budget_s, least=1.0):
            yield replace(progress, setting=FINAL, label=label)
        self._final = self._record.blocks[key]
        together = SettingGroup(FINAL, EVERYTHING, ())
        judged = self._judged(key, together, Trial(label, self._changes), least=1.0)
        if judged.verdict != "quicker":
            self._taken.clear()
            self._compared = [_untaken(each) for each in self._compared]
        self._compared.append(judged)
        yield judged

    def _key(self, setting: str, label: str) -> str:
        """What is compared with what, in words that stay the same from run to run."""
        before = ", ".join(f"{each.setting} {each.label}" for each in self._taken)
        return f"{setting}: {label} over [{before}]"

    # --- runs ---

    def _fill(
        self,
        key: str,
        variants: tuple[Variant, Variant],
        workloads: Sequence[Workload],
        ends_s: float,
        *,
        least: float,
    ) -> Iterator[TrialProgress]:
        """Measure blocks until they decide, an engine fails, or the time is over.

        Progress names no setting: whoever asks knows it. `ends_s` is the time spent at which no
        block is begun, `least` the gain that would count.
        """
        stored = self._record.blocks.setdefault(key, {})
        blocks = {each.name: stored.setdefault(each.name, []) for each in workloads}
        order = list(workloads)
        for n_wanted in (1, N_FIRST, N_DECIDING, N_MOST):
            if key in self._record.failures or _is_decided(_joint(blocks), least):
                return
            for workload in order:
                while len(blocks[workload.name]) < n_wanted:
                    if self._spent_s + self._block_s.get(workload.name, 0.0) > ends_s:
                        return
                    block = self._block(key, variants, workload)
                    if block is None:
                        return
                    blocks[workload.name].append(block)
                    self._save()
                    n_blocks = sum(map(len, blocks.values()))
                    yield TrialProgress("", "", n_blocks, _joint(blocks), self._spent_s)
            order.reverse()

    def _block(
        self, key: str, variants: tuple[Variant, Variant], workload: Workload
    ) -> Block | None:
        """Four runs; None where the second engine failed, which is kept, or the time was over."""
        a, b = variants
        for is_last_try in (False, True):
            began_s = self._clock()
            try:
                one, two = self._seconds(a, workload), self._seconds(b, workload, is_tried=True)
                if two > HOPELESS * one:
                    return one, two, two, one
                three, four = self._seconds(b, workload), self._seconds(a, workload)
            except OutOfTimeError:
                return None
            except VariantFailedError as error:
                if error.variant == b:
                    self._record.failures[key] = str(error)
                    self._save()
                    return None
                if is_last_try:
                    raise TuningError(f"settings that ran before fail now: {error}") from error
                continue
            self._block_s[workload.name] = self._clock() - began_s
            return one, two, three, four
        return None

    def _seconds(self, variant: Variant, workload: Workload, *, is_tried: bool = False) -> float:
        """One run; a candidate whose first run takes far longer than usual has failed."""
        within_s, began_s = max(self._left_s, LEAST_WAIT_S), self._clock()
        is_limited = is_tried and bool(self._noise) and variant not in self._loaded
        usual_s = self._longest_s if is_limited else 0.0
        if usual_s:
            within_s = min(within_s, max(PATIENCE * usual_s, LEAST_WAIT_S))
        try:
            seconds = self._machine.seconds(variant, workload, within_s=within_s)
        except OutOfTimeError as error:
            if not usual_s or self._left_s <= 0:
                raise
            reason = f"its first run was given up after {within_s:.0f} s, usual are {usual_s:.0f} s"
            raise VariantFailedError(variant, reason) from error
        self._loaded.add(variant)
        if not self._noise:
            self._longest_s = max(self._longest_s, self._clock() - began_s)
        return seconds

    def _save(self) -> None:
        self._record.spent_s = self._spent_s
        self._keep(self._record)


def _variant(configuration: Configuration, sizes: WorkloadSizes, replica: int = 0) -> Variant:
    return Variant(replace(configuration, n_ctx=sizes.n_ctx), replica)


def _joint(blocks: Blocks) -> PairedGain | None:
    """The gain over a turn."""
    return gain_of(joint_ratios(blocks, TURN))


def _parts(blocks: Blocks) -> dict[WorkloadName, PairedGain]:
    """The gain of each workload that was measured."""
    gains = {name: gain_of([block_ratio(each) for each in blocks[name]]) for name in blocks}
    return {name: gain for name, gain in gains.items() if gain is not None}


def _is_decided(gain: PairedGain | None, least: float) -> bool:
    """Whether more blocks would change nothing that is done; an infinite `least` wants them all."""
    if gain is None or gain.n_blocks >= N_MOST:
        return gain is not None
    if gain.n_blocks < N_DECIDING:
        is_slower = gain.high < (1 if gain.n_blocks >= N_FIRST else LOSES)
        return is_slower and least < inf
    return gain.is_clear(least) or gain.median < least


def _verdict(
    failure: str | None,
    gain: PairedGain | None,
    parts: Mapping[WorkloadName, PairedGain],
    least: float,
) -> tuple[Verdict, str]:
    if failure is not None:
        return "failed", failure
    if gain is None:
        return "no time", "not measured"
    if not _is_decided(gain, least):
        return "no time", f"still open behind {gain.n_blocks} blocks"
    if gain.high < 1:
        return "slower", ""
    if not gain.is_clear(least):
        return "within noise", f"a gain counts from {least:.2f} on"
    slowest = min(parts, key=lambda name: parts[name].median)
    if parts[slowest].high < MAY_COST:
        return "within noise", f"{slowest} becomes slower, {parts[slowest].median:.2f}"
    return "quicker", ""


def _untaken(each: TrialResult) -> TrialResult:
    if each.verdict != "taken":
        return each
    return replace(each, verdict="within noise", reason="together with the others it gains nothing")


def _speeds(blocks: Blocks, places: tuple[int, int]) -> dict[WorkloadName, float]:
    """Tokens a second of A (places 0 and 3) or B (1 and 2), by workload."""
    return {
        name: 1 / median(block[place] for block in found for place in places)
        for name, found in blocks.items()
        if found
    }
