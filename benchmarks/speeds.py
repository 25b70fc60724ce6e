"""Tokens per second predicted before loading, and as measured: for each model and setting.

    ../.venv/bin/python speeds.py MODEL [MODEL ...] [--tokens 64] [--page results/speeds.md]

Two predictions: the bound (bytes that a token reads over the bandwidth of memory, measured at the
start), and the speed of an earlier load of the same model and setting, which `kvchat tune`, `bench`
and chats save. Each setting is loaded twice; the first load is the earlier one. Nothing is
drafted. With `--page` the table is written between the marks of that page.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from common import ask, load, tokens_per_second

from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.memory.bandwidth import Bandwidths, measure_ram
from engine.memory.hardware import this_processor, usable_cores, usable_devices
from engine.model.architecture import read_model
from engine.model.ollama import model_name
from engine.planning.planner import Planner, Setup
from engine.requests import GenerationRequest

BEGIN, END = "<!-- measured by benchmarks/speeds.py -->", "<!-- end of what was measured -->"
N_CTX = 4096
SENTENCE = "The keeper of the archive counted the boats that came in before the storm. "
DEPTHS = (64, 3000)
"""Tokens that the measured ones follow, about."""
N_REPLIES = 3
SETTINGS: dict[str, dict[str, object]] = {
    "usual": {},
    "1 thread": {"n_threads": 1},
    "q8_0 cache": {"type_k": "q8_0", "type_v": "q8_0"},
}
BANDWIDTH_S = 2.0
TITLES = (
    "model", "setting", "after tokens", "measured", "bound", "error", "measured before", "error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One setting of one model at one depth, in tokens per second."""

    model: str
    setting: str
    n_before: int
    bound: float
    before: float
    measured: float

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.model, self.setting, f"{self.n_before:,}", f"{self.measured:.1f}",
            f"≤ {self.bound:.1f}", error(self.bound, self.measured), f"{self.before:.1f}",
            error(self.before, self.measured),
        )  # fmt: skip


def main() -> None:
    options = parsed()
    bandwidths = Bandwidths(None)
    measured = measure_ram(BANDWIDTH_S)
    rows = [row for model in options.models for row in rows_of(model, bandwidths, options.tokens)]
    lines = table(rows, measured)
    print("\n".join(lines))
    if options.page is not None:
        write(options.page, lines)


def rows_of(model: Path, bandwidths: Bandwidths, n_tokens: int) -> Iterator[Row]:
    """The rows of a model; on standard error how far it is."""
    planner = Planner(here=usable_devices(), bandwidths=bandwidths.of)
    n_ctx = min(N_CTX, read_model(model).architecture.n_ctx_train)
    for setting, values in SETTINGS.items():
        configuration = replace(Configuration(model.resolve(), n_ctx), **values)  # type: ignore[arg-type]
        bound = planner.plan(Setup(configuration)).bound
        if bound is None:
            sys.exit("the bandwidth of a device is not known: there is no bound to compare with")
        before = speeds(model, n_ctx, values, n_tokens)
        after = speeds(model, n_ctx, values, n_tokens)
        print(f"{model.name}, {setting}", file=sys.stderr)
        for (n_before, first), (_, second) in zip(before, after, strict=True):
            predicted = bound.at_depth(n_before)
            if predicted is None:
                sys.exit(f"there is no bound to compare with: {bound.doubt}")
            yield Row(model_name(model), setting, n_before, predicted, first, second)


def speeds(
    model: Path, n_ctx: int, values: dict[str, object], n_tokens: int
) -> list[tuple[int, float]]:
    """Tokens of the prompt and the median speed after it, for each depth."""
    off = SpeculationSettings(predictor=PredictorName.OFF)
    engine = load(model, n_ctx=n_ctx, speculation=off, **values)
    found = []
    for depth in DEPTHS:
        prompt = SENTENCE * max(1, min(depth, n_ctx - 2 * n_tokens) // 16)
        replies = [
            ask(engine, GenerationRequest(raw_prompt=prompt, max_tokens=n_tokens))
            for _ in range(N_REPLIES + 1)
        ][1:]
        speed = statistics.median(map(tokens_per_second, replies))
        found.append((replies[0].stats.n_prompt + n_tokens // 2, speed))
    engine.client.close()
    return found


def error(predicted: float, measured: float) -> str:
    """How far a figure is off, as a share of what was measured."""
    return f"{100 * (predicted / measured - 1):+.0f} %"


def table(rows: list[Row], bandwidth: float) -> list[str]:
    """The table with the machine above it and the middle of the errors below."""
    n_cores, _ = usable_cores()
    cells = ["| " + " | ".join(row.cells) + " |" for row in rows]
    bounds = statistics.median(row.bound / row.measured - 1 for row in rows)
    before = statistics.median(abs(row.before / row.measured - 1) for row in rows)
    return [
        f"{this_processor().name}, {n_cores} cores, memory read at {bandwidth / 1e9:.1f} GB/s;"
        " tokens per second.",
        "",
        "| " + " | ".join(TITLES) + " |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
        *cells,
        "",
        f"The bound is {100 * bounds:.0f} % above what was measured in the median row, what was "
        f"measured before {100 * before:.1f} % off.",
    ]


def write(page: Path, lines: list[str]) -> None:
    """Put the table between the marks of a page."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{page} has no {BEGIN} followed by {END}")
    page.write_text(f"{before}{BEGIN}\n\n{chr(10).join(lines)}\n\n{END}{after}", encoding="utf-8")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--page", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
