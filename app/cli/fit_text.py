"""A found configuration on standard output."""

import sys
from textwrap import wrap

from app.cli.console import Part, say
from app.cli.plan_text import PLAIN, symbols_for
from engine.configuration import Configuration, PredictorName
from engine.memory.units import format_bytes
from engine.planning.fit import FitResult
from engine.planning.goals import Goal
from engine.planning.measured import holders
from engine.planning.planner import warnings_of

WIDTH = 100
TITLES = {
    Goal.CONTEXT: "largest context",
    Goal.QUALITY: "highest quality",
    Goal.SPEED: "fastest",
    Goal.BALANCED: "balanced",
}


def print_fit(fit: FitResult) -> None:
    """Print a found configuration, its devices, the reasons, what else fits, and the command."""
    found = fit.found
    lines: list[Part] = [(f"{fit.model.file.name} · {TITLES[found.goal]}", "bold"), ""]
    lines += [f"  {name:10} {value}" for name, value in _rows(found.configuration)]
    lines += ["", *_device_table(fit)]
    lines += _section("Why", [step.text for step in found.steps])
    lines += _section("What else fits", [other.label for other in found.alternatives])
    lines += _section("Know before you start", list(warnings_of(fit.plan)))
    lines += _section("On the GPUs now", holders() if fit.request.machine.has_own_gpus else [])
    lines += ["", ("Start it", "bold"), fit.plan.command_line]
    is_plain = symbols_for(sys.stdout.encoding) == "ascii"
    for line in lines:
        say(_in_letters(line) if is_plain else line)


def _in_letters(line: Part) -> Part:
    if isinstance(line, str):
        return line.translate(PLAIN)
    return line[0].translate(PLAIN), line[1]


def _rows(configuration: Configuration) -> list[tuple[str, str]]:
    k, v = configuration.type_k, configuration.type_v
    slots = configuration.n_slots
    each = f", {configuration.n_ctx // slots:,} for each of {slots} slots" if slots > 1 else ""
    split = " : ".join(f"{share:g}" for share in configuration.tensor_split)
    rows = [
        ("context", f"{configuration.n_ctx:,} tokens{each}"),
        ("cache", k if k == v else f"keys {k}, values {v}"),
        ("layers", _layers(configuration)),
        ("batch", f"{configuration.n_batch}, micro-batches of {configuration.n_ubatch}"),
        ("drafts", _drafts(configuration)),
    ]
    if split:
        rows.insert(3, ("split", f"{split} among the GPUs"))
    return rows


def _layers(configuration: Configuration) -> str:
    match configuration.n_gpu_layers:
        case 0:
            return "all in main memory"
        case -1:
            where = "all on the GPU"
        case n_layers:
            where = f"the last {n_layers} on the GPU"
    match configuration.n_cpu_moe:
        case 0:
            return where
        case -1:
            return f"{where}, experts of all in main memory"
        case n_layers:
            return f"{where}, experts of the first {n_layers} in main memory"


def _drafts(configuration: Configuration) -> str:
    if configuration.draft is not None:
        return f"by {configuration.draft.model_path.name}"
    is_off = configuration.speculation.predictor is PredictorName.OFF
    return "none" if is_off else "from the text so far"


def _device_table(fit: FitResult) -> list[str]:
    devices = fit.found.estimate.devices
    width = max(len("device"), *(len(device.device.name) for device in devices))
    rows = [("device", "needs", "of free", "stays free")]
    rows += [
        (
            device.device.name,
            format_bytes(device.total_bytes),
            format_bytes(device.device.free_bytes),
            format_bytes(device.left_bytes),
        )
        for device in devices
    ]
    return [f"  {name:{width}} {a:>11} {b:>11} {c:>11}" for name, a, b, c in rows]


def _section(title: str, texts: list[str]) -> list[Part]:
    if not texts:
        return []
    lines: list[Part] = ["", (title, "bold")]
    for text in texts:
        first, *rest = wrap(text, WIDTH - 4)
        lines += [f"  · {first}", *(f"    {row}" for row in rest)]
    return lines
