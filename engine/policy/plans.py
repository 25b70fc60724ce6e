"""Plans: saved measurements, by which K/V types are chosen.

Each is a file. Its name has a digest of model, texts, build of llama.cpp, device, threads and
settings. A damaged or renamed file is not used, overwritten or deleted; callers get a note.
"""

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path

from engine.errors import EngineError
from engine.files import RECORDS_BYTES, read_text, reason_of, replace_file
from engine.quality.records import Report, Subject, report_json, report_of

MAX_PLANS = 200
"""Maximum files of one model: each has another text, build or device."""
IDENTITY_DIGITS = 32
KEY_BYTES = 8


class PlanError(EngineError):
    """A plan that cannot be saved or read."""

    title = "The cache measurement cannot be used"


@dataclass(frozen=True, slots=True)
class FoundPlans:
    """The plans of a model, the newest first, and the problems of its other files."""

    plans: tuple[Report, ...] = ()
    problems: tuple[str, ...] = ()


class PlanStore:
    """Measured K/V types of models, one file per result; the folder is made with the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, report: Report) -> Report:
        """Save a report in place of the last one with the same subject.

        Types that were not measured completely keep their old figures or are left out, so one type
        can be measured again, and a stopped run loses nothing.

        Raises:
            PlanError: the file cannot be written.
        """
        path, before = self._place(report.subject)
        plan = report if before is None else _joined(before, report)
        rows = (each for each in plan.measurements if each.is_complete or each.role != "candidate")
        plan = replace(plan, measurements=tuple(rows))
        try:
            replace_file(path, [report_json(plan).encode()], is_durable=True)
        except OSError as error:
            raise PlanError(
                f"{path} cannot be written ({reason_of(error)}): the measurement is not saved"
            ) from error
        return plan

    def find(self, model_identity: str, build: str) -> FoundPlans:
        """The plans of a model for a build of llama.cpp; plans of other builds are a problem."""
        plans, problems, others = [], [], []
        paths = sorted(self.folder.glob(f"{model_identity[:IDENTITY_DIGITS]}-*.json"))
        for path in paths[:MAX_PLANS]:
            try:
                plan = read_plan(path)
            except PlanError as error:
                problems.append(str(error))
                continue
            if plan.subject.build == build:
                plans.append(plan)
            else:
                others.append(plan.subject)
        if others and not plans:
            builds = ", ".join(sorted({subject.build for subject in others}))
            problems.append(
                f"the cache quality of {others[0].model} was measured with llama-cpp-python "
                f"{builds}, but {build} is installed: measure again with `kvchat cache-quality`"
            )
        plans.sort(key=measured_at, reverse=True)
        return FoundPlans(tuple(plans), tuple(problems))

    def _place(self, subject: Subject) -> tuple[Path, Report | None]:
        """The path for the plan of a subject, and the plan that it replaces.

        An unreadable file keeps its name; the next name is used.
        """
        stem = plan_name(subject)
        for name in (stem, *(f"{stem}-{number}" for number in range(2, 10))):
            path = self.folder / f"{name}.json"
            if not path.exists():
                return path, None
            try:
                return path, read_plan(path)
            except PlanError:
                continue
        raise PlanError(
            f"{self.folder} contains too many files that are not measurements: move them away"
        )


def plan_name(subject: Subject) -> str:
    """The file name of a plan without its suffix: the model's identity and a digest of the rest.

    The name of the model's file does not count.
    """
    facts = {name: value for name, value in asdict(subject).items() if name != "model"}
    text = json.dumps(facts, sort_keys=True)
    key = blake2b(text.encode(), digest_size=KEY_BYTES).hexdigest()
    return f"{subject.model_identity[:IDENTITY_DIGITS]}-{key}"


def read_plan(path: Path) -> Report:
    """The plan of a file.

    Raises:
        PlanError: it cannot be read, is damaged, or was renamed.
    """
    try:
        plan = report_of(read_text(path, limit=RECORDS_BYTES))
        measured_at(plan)
    except (OSError, ValueError) as error:
        raise PlanError(
            f"{path} is ignored because it is not a readable measurement ({error}): move "
            "the file away and measure again with `kvchat cache-quality`"
        ) from error
    if not path.stem.startswith(plan_name(plan.subject)):
        raise PlanError(
            f"{path} is ignored: its name and its contents ({plan.subject.model}) belong "
            "to different measurements; move the file away"
        )
    return plan


def measured_at(plan: Report) -> datetime:
    """When a measurement began.

    Raises:
        ValueError: the time is missing, or has no offset.
    """
    found = datetime.fromisoformat(plan.started)
    if found.tzinfo is None:
        raise ValueError(f"the start time {plan.started!r} has no UTC offset")
    return found


def is_due(plan: Report, now: datetime, every_days: float) -> bool:
    """Whether the figures are older than the interval; an interval of 0 never ends."""
    return bool(every_days) and now - measured_at(plan) > timedelta(days=every_days)


def _joined(before: Report, fresh: Report) -> Report:
    """A report with the types and speeds of an earlier one that it has not measured completely.

    It is as old as its oldest figures.
    """
    found = {(each.role, each.kind): each for each in fresh.measurements}
    started = fresh.started
    for each in before.measurements:
        newer = found.get((each.role, each.kind))
        if newer is None or (each.is_complete and not newer.is_complete):
            found[each.role, each.kind], started = each, before.started
        elif newer.cost is None:
            found[each.role, each.kind] = replace(newer, cost=each.cost)
    return replace(fresh, measurements=tuple(found.values()), started=started)
