"""Reports of cache type measurements: typed, saved as JSON, validated when read.

Every figure compares a candidate with the reference on the same rows: row i has both
distributions of token i + 1 after tokens 0 to i. Logarithms are natural: KL and NLL are in nats.
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
from engine.files import RECORDS_BYTES, read_text, reason_of, replace_file
from engine.validation import read_versioned

CONTROL: Final = "control"
"""Key of the setting that describes the control. Reports without it used the reference with batches
a quarter as large, which below 64 tokens a batch runs the same kernels."""
SCHEMA: Final = 2
"""Increased whenever a field changes its meaning; files of older versions are refused."""
MIN_VERDICT_TOKENS = 8_000
"""Scored tokens that a verdict needs."""
MAX_NLL_DELTA = 20.0
"""Nats at which the perplexity ratio is capped."""
POSITIONS = (0, 2048, 8192, 16384)
"""Start of each range of positions with separate figures."""
TEXT_KINDS = ("chat", "code", "document", "tools")

Role = Literal["reference", "control", "candidate"]
"""The reference; the same type computed by other kernels, whose figures are the noise floor; or a
cache type that may be chosen."""
Number = Annotated[float, Bounds(ge=-1e9, le=1e9)]
Amount = Annotated[float, Bounds(ge=0, le=1e9)]
Share = Annotated[float, Bounds(ge=0, le=1)]
Count = Annotated[int, Bounds(ge=0, le=MAX_COUNT)]
Size = Annotated[int, Bounds(ge=0, le=2**53)]
Name = Annotated[str, Bounds(pattern=r"^\P{C}+$", max_length=300)]
"""One line of text without control and format characters."""
Digest = Annotated[str, Bounds(pattern=r"^[0-9a-f]{16,64}$")]


class QualityError(EngineError):
    """Texts or cache types cannot be measured, or a report cannot be read."""

    title = "Cache quality cannot be measured"


@dataclass(frozen=True, slots=True)
class Figure:
    """A value and its 95 % confidence interval, by bootstrap over documents."""

    __pydantic_config__ = STRICT

    value: Number
    low: Number | None = None
    """Ends of the interval; None if there is only one document."""
    high: Number | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """How far a cache type is from the reference on some rows."""

    __pydantic_config__ = STRICT

    n_tokens: Count
    """Rows that were scored."""
    nll: Figure
    """Mean negative log-likelihood of the text with this cache type."""
    nll_delta: Figure
    """`nll` minus that of the reference: above 0 is worse."""
    kl_mean: Figure
    """KL(reference || candidate) of a row: 0 for equal distributions."""
    kl_median: Figure
    kl_p99: Figure
    kl_p999: Figure
    same_top: Figure
    """Share of rows on which both have the same top token."""

    @property
    def perplexity_ratio(self) -> Figure:
        """`exp(nll_delta)`: perplexity divided by that of the reference."""
        ends = (self.nll_delta.value, self.nll_delta.low, self.nll_delta.high)
        value, low, high = (None if e is None else exp(min(e, MAX_NLL_DELTA)) for e in ends)
        assert value is not None
        return Figure(value, low, high)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The scores of the rows of one kind of text, or of one range of positions."""

    __pydantic_config__ = STRICT

    name: Name
    """One of `TEXT_KINDS`, or of `position_name`."""
    scores: Scores


@dataclass(frozen=True, slots=True)
class Answers:
    """Questions answered correctly: every token of the answer was the top token."""

    __pydantic_config__ = STRICT

    name: Name
    """Depth of the needles, such as `50%`."""
    n_right: Count
    n_asked: Count


@dataclass(frozen=True, slots=True)
class Cost:
    """Allocated memory of a context with a cache type, and its speed (medians)."""

    __pydantic_config__ = STRICT

    n_ctx: Count
    """Size of the measured context in tokens."""
    kv_bytes: Size
    """Bytes of the cache."""
    compute_bytes: Size
    """Bytes of the graph's buffers, which include dequantised keys and values of a batch."""
    prefill_tps: Amount
    shallow_depth: Count
    """Tokens in the cache while `shallow_tps` was measured."""
    shallow_tps: Amount
    deep_depth: Count
    deep_tps: Amount

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of cache for one token of a full context."""
        return self.kv_bytes / max(self.n_ctx, 1)

    @property
    def peak_bytes_per_token(self) -> float:
        """Bytes of cache and graph for one token of a full context."""
        return (self.kv_bytes + self.compute_bytes) / max(self.n_ctx, 1)


@dataclass(frozen=True, slots=True)
class Measurement:
    """All figures of one cache type in one role."""

    __pydantic_config__ = STRICT

    kind: KVTypes
    role: Role
    is_complete: bool
    """Whether every text and every question was scored."""
    scores: Scores
    by_position: tuple[Breakdown, ...] = ()
    by_text: tuple[Breakdown, ...] = ()
    needle: tuple[Answers, ...] = ()
    """Answers by depth: the share of the text before the needle."""
    cost: Cost | None = None
    """Memory and speed; None if not requested or not measured yet."""


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
    """Model, texts, machine and settings of a measurement; a report continues one with the same."""

    __pydantic_config__ = STRICT

    model: Name
    """File name."""
    model_identity: Digest
    """`engine.model.identity.model_identity`."""
    texts_digest: Digest
    """Digest of the tokens of all texts and questions."""
    build: Name
    """`engine.builds.installed_build`."""
    device: Name
    """Names of the processor and of the GPUs if they hold layers."""
    n_threads: Count
    n_ctx: Count
    """Tokens of the longest document."""
    n_chunk: Count
    """Tokens of one batch."""
    reference: KVTypes
    settings: dict[Name, Name]
    """Other settings that change the figures, such as flash attention."""


@dataclass(frozen=True, slots=True)
class Report:
    """A measurement, complete or not."""

    __pydantic_config__ = STRICT

    subject: Subject
    texts: tuple[TextFacts, ...]
    started: Name
    """Date and time in ISO 8601, with the offset."""
    measurements: tuple[Measurement, ...] = ()
    """The reference, the control, then the candidates in the requested order."""
    elapsed_s: Amount = 0.0
    """Seconds of all runs that contributed to this report."""
    schema: Literal[2] = SCHEMA

    @property
    def n_tokens(self) -> int:
        """Scored tokens of the texts; if the reference is incomplete, those that it scored."""
        reference = self.reference
        if reference is not None and not reference.is_complete:
            return reference.scores.n_tokens
        return sum(text.n_tokens for text in self.texts)

    @property
    def allows_verdict(self) -> bool:
        """Whether enough tokens were scored to choose a cache type by."""
        return self.n_tokens >= MIN_VERDICT_TOKENS

    @property
    def candidates(self) -> tuple[Measurement, ...]:
        """Measurements of the cache types that may be chosen."""
        return tuple(each for each in self.measurements if each.role == "candidate")

    @property
    def reference(self) -> Measurement | None:
        """Measurement of the reference; None before its first text is done."""
        return next((each for each in self.measurements if each.role == "reference"), None)

    @property
    def control(self) -> Measurement | None:
        """Measurement of the control, the noise floor; None before its first text is done."""
        return next((each for each in self.measurements if each.role == "control"), None)

    def find(self, kind: KVTypes) -> Measurement | None:
        """The candidate with this cache type; None if it was not measured."""
        return next((each for each in self.candidates if each.kind == kind), None)


def check_same_subject(old: Subject, new: Subject) -> None:
    """Raise `QualityError` with the differences if a measurement cannot continue a report."""
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


def n_right(answers: Iterable[Answers]) -> tuple[int, int]:
    """Numbers of correct answers and of questions, summed over all depths."""
    counts = [(each.n_right, each.n_asked) for each in answers]
    return sum(right for right, _ in counts), sum(asked for _, asked in counts)


def position_name(start: int) -> str:
    """Name of the range that starts at one of `POSITIONS`: `0-2k`, ..., `16k on`."""
    after = POSITIONS[POSITIONS.index(start) + 1 :]
    return f"{start // 1024}-{after[0] // 1024}k" if after else f"{start // 1024}k on"


def report_json(report: Report) -> str:
    """Serialise a report."""
    return json.dumps(dataclasses.asdict(report), ensure_ascii=False, indent=1) + "\n"


def report_of(text: str) -> Report:
    """Parse a report from JSON.

    Raises:
        ValueError: it is not a report of this version; the message has the location.
    """
    return read_versioned(text, Report, SCHEMA, key="schema")


def read_report(path: Path) -> Report:
    """Read a report that `write_report` wrote.

    Raises:
        QualityError: the file cannot be read, or is not a report of this version.
    """
    try:
        return report_of(read_text(path, limit=RECORDS_BYTES))
    except (OSError, ValueError) as error:
        raise QualityError(
            f"{path} cannot be read as a report of cache quality ({error}): use another file"
        ) from error


def write_report(path: Path, report: Report) -> None:
    """Replace the file atomically, so that a crash leaves the previous report.

    Raises:
        QualityError: the file cannot be written.
    """
    try:
        replace_file(path, [report_json(report).encode()], is_durable=True)
    except OSError as error:
        raise QualityError(
            f"{path} cannot be written ({reason_of(error)}): free some space, or choose "
            "another file"
        ) from error
