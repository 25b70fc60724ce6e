"""What a measurement of cache kinds found: typed, kept as JSON, and read back within bounds.

Every figure compares a candidate with the reference on the same rows: row i holds both
distributions of token i + 1 behind tokens 0 to i. Logarithms are natural, so KL and NLL are nats.
"""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import exp
from pathlib import Path
from typing import Annotated, Final, Literal

from engine.configuration import MAX_COUNT, STRICT, Bounds, KVTypes
from engine.errors import EngineError
from engine.files import RECORDS_BYTES, read_text, replace_file
from engine.validation import read_versioned

CONTROL: Final = "control"
"""The setting of a report that says how its control differs; reports without it had the reference
in batches a quarter as large, which below 64 tokens a batch is no other kernel."""
SCHEMA: Final = 2
"""Raised whenever a field changes its meaning; older files are then refused, not misread."""
LEAST_TOKENS = 8_000
"""Scored tokens below which there are figures and no verdict."""
MAX_NLL_DELTA = 20.0
"""Nats beyond which a ratio of perplexities says nothing more."""
POSITIONS = (0, 2048, 8192, 16384)
"""Where the parts of a text begin that are told apart by position."""
TEXT_KINDS = ("chat", "code", "document", "tools")

Role = Literal["reference", "control", "candidate"]
"""The reference; the reference again through other kernels, whose figures are the noise that no
cache type causes; or a cache kind that may be chosen."""
Number = Annotated[float, Bounds(ge=-1e9, le=1e9)]
Amount = Annotated[float, Bounds(ge=0, le=1e9)]
Share = Annotated[float, Bounds(ge=0, le=1)]
Count = Annotated[int, Bounds(ge=0, le=MAX_COUNT)]
Size = Annotated[int, Bounds(ge=0, le=2**53)]
Name = Annotated[str, Bounds(pattern=r"^\P{C}+$", max_length=300)]
"""A line that a terminal shows as it is: without control and format characters."""
Digest = Annotated[str, Bounds(pattern=r"^[0-9a-f]{16,64}$")]


class QualityError(EngineError):
    """Texts, cache kinds or a report that cannot be measured or read."""

    title = "Cache quality cannot be measured"


@dataclass(frozen=True, slots=True)
class Figure:
    """A value and where it lies with 95 % confidence, by bootstrap over documents."""

    __pydantic_config__ = STRICT

    value: Number
    low: Number | None = None
    """None where there is one document only."""
    high: Number | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """How far a kind is from the reference on some rows."""

    __pydantic_config__ = STRICT

    n_tokens: Count
    """Rows that were scored."""
    nll: Figure
    """Mean negative log-likelihood of the text with this kind."""
    nll_delta: Figure
    """The same less that of the reference: above 0 is worse."""
    kl_mean: Figure
    """KL(reference || kind) of a row: 0 where both distributions are the same."""
    kl_median: Figure
    kl_p99: Figure
    kl_p999: Figure
    same_top: Figure
    """Share of rows on which both have the same likeliest token."""

    @property
    def perplexity_ratio(self) -> Figure:
        """`exp(nll_delta)`: perplexity over that of the reference."""
        delta = self.nll_delta
        low, high = (None if end is None else _exp(end) for end in (delta.low, delta.high))
        return Figure(_exp(delta.value), low, high)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The scores of the rows of one kind of text, or of one range of positions."""

    __pydantic_config__ = STRICT

    name: Name
    """One of `TEXT_KINDS`, or of `position_name`."""
    scores: Scores


@dataclass(frozen=True, slots=True)
class Answers:
    """Questions that were answered right: greedily, every token of the answer."""

    __pydantic_config__ = STRICT

    name: Name
    """Depth of the needles such as `50 %`."""
    n_right: Count
    n_asked: Count


@dataclass(frozen=True, slots=True)
class Cost:
    """What a context of a kind takes, as allocated, and how quick it is; medians."""

    __pydantic_config__ = STRICT

    n_ctx: Count
    """Tokens of the context that was measured."""
    kv_bytes: Size
    """Of the cache."""
    compute_bytes: Size
    """Of the graph's buffers, which hold what is dequantised for a batch."""
    prefill_tps: Amount
    shallow_depth: Count
    """Tokens in the cache while the first rate of decoding was measured."""
    shallow_tps: Amount
    deep_depth: Count
    deep_tps: Amount

    @property
    def held_per_token(self) -> float:
        """Bytes of cache for one token of a full context."""
        return self.kv_bytes / max(self.n_ctx, 1)

    @property
    def peak_per_token(self) -> float:
        """Bytes of cache and graph for one token of a full context."""
        return (self.kv_bytes + self.compute_bytes) / max(self.n_ctx, 1)


@dataclass(frozen=True, slots=True)
class Measurement:
    """All that was found of one cache kind."""

    __pydantic_config__ = STRICT

    kind: KVTypes
    role: Role
    is_complete: bool
    """Whether every text and every question was scored."""
    scores: Scores
    by_position: tuple[Breakdown, ...] = ()
    by_text: tuple[Breakdown, ...] = ()
    needle: tuple[Answers, ...] = ()
    """By depth in the text, the share of it that lies before the needle."""
    cost: Cost | None = None
    """None where it was not asked for or not reached."""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """A text that was scored."""

    __pydantic_config__ = STRICT

    name: Name
    kind: Name
    """One of `TEXT_KINDS`."""
    n_tokens: Count


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured, where and with what; reports of equal subjects go on in each other."""

    __pydantic_config__ = STRICT

    model: Name
    """File name."""
    model_identity: Digest
    """`engine.model.identity.model_identity`."""
    texts_digest: Digest
    """Of the tokens of all texts and questions."""
    build: Name
    """`engine.builds.installed_build`."""
    device: Name
    """Processor, and GPUs that hold layers."""
    n_threads: Count
    n_ctx: Count
    """Longest text in tokens that was scored without a break."""
    n_chunk: Count
    """Tokens of one batch."""
    reference: KVTypes
    settings: dict[Name, Name]
    """All else that changes the numbers, such as `flash_attention`."""


@dataclass(frozen=True, slots=True)
class Report:
    """A measurement as far as it has come."""

    __pydantic_config__ = STRICT

    subject: Subject
    texts: tuple[TextFacts, ...]
    started: Name
    """Date and time in ISO 8601, with the offset."""
    measurements: tuple[Measurement, ...] = ()
    """The reference, the control, then the candidates as they were asked for."""
    elapsed_s: Amount = 0.0
    """Of all runs that made this report."""
    schema: Literal[2] = SCHEMA

    @property
    def n_tokens(self) -> int:
        """Tokens of all texts, as scored for each kind; as far as the reference has come."""
        reference = self.reference
        if reference is not None and not reference.is_complete:
            return reference.scores.n_tokens
        return sum(text.n_tokens for text in self.texts)

    @property
    def allows_verdict(self) -> bool:
        """Whether there was text enough to choose a type of cache by."""
        return self.n_tokens >= LEAST_TOKENS

    @property
    def candidates(self) -> tuple[Measurement, ...]:
        """The kinds that may be chosen."""
        return tuple(each for each in self.measurements if each.role == "candidate")

    @property
    def reference(self) -> Measurement | None:
        """What the others are compared with; None before its first text is done."""
        return next((each for each in self.measurements if each.role == "reference"), None)

    @property
    def control(self) -> Measurement | None:
        """The noise floor; None before its first text is done."""
        return next((each for each in self.measurements if each.role == "control"), None)

    def find(self, kind: KVTypes) -> Measurement | None:
        """The candidate of a kind; None where it was not measured."""
        return next((each for each in self.candidates if each.kind == kind), None)


def check_same_subject(old: Subject, new: Subject) -> None:
    """Make sure that a report can be gone on with.

    Raises:
        QualityError: something else would be measured; every difference is named.
    """
    differences = [
        f"{each.name} was {before} and is {now}"
        for each in fields(Subject)
        for before, now in [(getattr(old, each.name), getattr(new, each.name))]
        if before != now
    ]
    if differences:
        raise QualityError(
            f"the report to resume is from another measurement ({'; '.join(differences)}): "
            "use the same options, or start a new file"
        )


def _exp(value: float) -> float:
    """The exponential, within what can be shown."""
    return exp(min(value, MAX_NLL_DELTA))


def n_right(answers: Iterable[Answers]) -> tuple[int, int]:
    """Questions answered right, and asked, of all depths."""
    listed = tuple(answers)
    return sum(each.n_right for each in listed), sum(each.n_asked for each in listed)


def position_name(start: int) -> str:
    """The range of positions that begins at one of `POSITIONS`: `0-2k`, ..., `16k on`."""
    after = POSITIONS[POSITIONS.index(start) + 1 :]
    return f"{start // 1024}-{after[0] // 1024}k" if after else f"{start // 1024}k on"


def report_json(report: Report) -> str:
    """A report as a JSON text."""
    return json.dumps(dataclasses.asdict(report), ensure_ascii=False, indent=1) + "\n"


def report_of(text: str) -> Report:
    """The report of a JSON text.

    Raises:
        ValueError: it is none, or of another version; the message says where.
    """
    return read_versioned(text, Report, SCHEMA, key="schema")


def read_report(path: Path) -> Report:
    """Read what `write_report` wrote.

    Raises:
        QualityError: the file cannot be read, is damaged, no report, or of another version.
    """
    try:
        return report_of(read_text(path, limit=RECORDS_BYTES))
    except (OSError, ValueError) as error:
        raise QualityError(
            f"{path} cannot be read as a report of cache quality ({error}): use another file"
        ) from error


def write_report(path: Path, report: Report) -> None:
    """Replace the file whole, so that a crash leaves the last complete one.

    Raises:
        QualityError: the file cannot be written.
    """
    try:
        replace_file(path, [report_json(report).encode()], is_durable=True)
    except OSError as error:
        raise QualityError(
            f"{path} cannot be written ({error.strerror or error}): free space, or use another file"
        ) from error
