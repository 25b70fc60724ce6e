"""Whether what `kvchat fit` recommends fits by llama.cpp's own dry run, stand-in GPUs included.

    ../.venv/bin/python fit_answers.py --llama-cpp SOURCE [--answers 1000] [--seed 1] [--out FILE]

Models, machines, goals and limits are drawn; each answer is laid out by llama.cpp as it stands, and
its buffers with kvchat's overhead are held against what each device has free. Ends with 1 where an
answer does not fit, or llama.cpp refuses it.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from accuracy import STATE_LIMIT_BYTES, built_stand_in
from accuracy_models import write_header

from engine.configuration import Configuration, KVTypes
from engine.errors import PresetError
from engine.memory.dry_run import request_of
from engine.memory.estimate import Estimate
from engine.memory.hardware import Device, instructions_here
from engine.memory.terms import TARGETS, Target, TermKind
from engine.memory.units import GIB, MIB
from engine.model.architecture import Model, read_model
from engine.model.catalog import CatalogEntry, entries
from engine.planning.offload import Offload
from engine.planning.search import Goal, SearchLimits, search
from tests.support.dry_run_answers import Answer, Truth, key_of

SCRATCH = Path(__file__).parents[1] / ".cache" / "accuracy"
MARGIN_BYTES = 512 * MIB
QUANTIZATIONS = ("Q4_K_M", "Q8_0", "Q4_0", "Q2_K")
PAIRS = (
    None, None, None, "f16", "q8_0", "q4_0", "bf16", "f32", "iq4_nl", "q8_0/q4_0", "bf16/q8_0",
    "q5_1",
)  # fmt: skip
ANSWERS_OF_MODEL = 4
TRIES = 12


@dataclass(frozen=True, slots=True)
class Question:
    """What `fit` is asked for one model."""

    devices: tuple[Device, ...]
    goal: Goal
    target: Target
    limits: SearchLimits
    n_slots: int

    @property
    def n_gpus(self) -> int:
        return len(self.devices) - 1


def drawn(dice: random.Random, weights_bytes: int) -> Question:
    """Draw a question for a model: GPUs and memory from too small to ample for its weights."""
    n_gpus = dice.choice((0, 1, 1, 1, 2, 2))
    free = [int(weights_bytes * dice.uniform(0.15, 1.6)) + GIB for _ in range(n_gpus)]
    gpus = [Device(f"GPU {index}", "gpu", nbytes, nbytes) for index, nbytes in enumerate(free)]
    ram = int(weights_bytes * dice.uniform(0.9, 2.5)) + 2 * GIB
    cpu = Device("CPU", "cpu", ram, ram, instructions=instructions_here())
    pair = dice.choice(PAIRS)
    pairs: tuple[KVTypes, ...] | None = None if pair is None else (KVTypes.parse(pair),)
    return Question(
        (*gpus, cpu),
        dice.choice(list(Goal)),
        dice.choice(TARGETS),
        SearchLimits(
            min_n_ctx=dice.choice((None, 512, 4096)),
            pairs=pairs,
            offload=dice.choice((Offload.NONE, Offload.PARTIAL, Offload.PARTIAL, Offload.ANY)),
        ),
        dice.choice((1, 1, 1, 2, 4)),
    )


def answered(model: Model, asked: Question) -> Estimate | None:
    """What `fit` recommends, None where it refuses."""
    base = Configuration(model.file.path, 256, n_slots=asked.n_slots)
    try:
        return search(
            model, asked.devices, asked.goal, target=asked.target, margin_bytes=MARGIN_BYTES,
            base=base, limits=asked.limits,
        ).estimate  # fmt: skip
    except PresetError:
        return None


def laid_out(model: Model, asked: Question, answer: Estimate, truth: Truth) -> Answer:
    """The answer of llama.cpp: stand-ins are alike, so the share of each card is named."""
    now = answer.configuration
    if asked.n_gpus > 1 and not now.tensor_split:
        now = replace(now, tensor_split=tuple(float(d.free_bytes) for d in asked.devices[:-1]))
    if not asked.n_gpus:
        now = replace(now, n_gpu_layers=0)
    request = request_of(now, asked.target)
    return truth.ask(key_of(model.file.path, request, asked.n_gpus), request, asked.n_gpus)


def least_left(answer: Estimate, dry_run: Answer) -> int:
    """The bytes that stay free on the fullest device; negative where it does not fit."""
    buffers, grown = (
        dry_run["buffers"],
        int(str(dry_run["output_grown"])) - int(str(dry_run["output"])),
    )
    assert isinstance(buffers, dict)
    used: Counter[str] = Counter()
    for name, parts in buffers.items():
        is_gpu = name.startswith("GPU") and name[3:].isdigit()
        used[f"GPU {name[3:]}" if is_gpu else "CPU"] += sum(parts.values())
    used["CPU"] += int(str(dry_run["output"])) + grown
    return min(
        each.device.free_bytes - used[each.device.name] - each.term(TermKind.OVERHEAD).nbytes
        for each in answer.devices
        if used[each.device.name]
    )


def row_of(model: Model, asked: Question, answer: Estimate, truth: Truth) -> dict[str, object]:
    """A row: what was asked, what was recommended, and llama.cpp's answer."""
    dry_run = laid_out(model, asked, answer, truth)
    now = answer.configuration
    row: dict[str, object] = {
        "model": model.file.path.name,
        "devices": [round(device.free_bytes / GIB, 2) for device in asked.devices],
        "goal": asked.goal.value,
        "target": asked.target,
        "offload": asked.limits.offload.value,
        "n_slots": asked.n_slots,
        "n_ctx": now.n_ctx,
        "types": f"{now.type_k}/{now.type_v}",
        "n_ubatch": now.n_ubatch,
        "n_gpu_layers": now.n_gpu_layers,
        "n_cpu_moe": now.n_cpu_moe,
        "tensor_split": now.tensor_split,
    }
    if "error" in dry_run:
        return {**row, "verdict": "refused", "why": dry_run["error"]}
    left = least_left(answer, dry_run)
    verdict = "over" if left < 0 else "in the margin" if left < MARGIN_BYTES else "fits"
    return {**row, "verdict": verdict, "left_mib": round(left / MIB, 1)}


def rows_of(
    entry: CatalogEntry, dice: random.Random, truth: Truth, folder: Path
) -> Iterator[dict[str, object]]:
    """Some answers for one model, in a quantisation that is drawn."""
    path = write_header(entry, dice.choice(QUANTIZATIONS), folder, with_vocabulary=False)
    model = read_model(path)
    n_found = 0
    for _ in range(TRIES):
        asked = drawn(dice, model.file.nbytes)
        answer = answered(model, asked)
        state = 0 if answer is None else sum(d.term(TermKind.STATE).nbytes for d in answer.devices)
        if answer is None or state > STATE_LIMIT_BYTES:
            continue
        yield row_of(model, asked, answer, truth)
        n_found += 1
        if n_found == ANSWERS_OF_MODEL:
            break
    path.unlink()


def main() -> None:
    options = _options()
    folder = options.out.parent / "fit_headers"
    folder.mkdir(parents=True, exist_ok=True)
    truth = Truth(built_stand_in(options.llama_cpp, options.out))
    dice, verdicts = random.Random(options.seed), Counter[str]()
    catalogue = [entry for entry in entries() if not options.only or entry.name in options.only]
    with options.out.open("w", encoding="utf-8") as out:
        while verdicts.total() < options.answers:
            for row in rows_of(dice.choice(catalogue), dice, truth, folder):
                verdict = str(row["verdict"])
                verdicts[verdict] += 1
                out.write(json.dumps(row) + "\n")
                out.flush()
                if verdict != "fits":
                    print(verdict, json.dumps(row), flush=True)
    print(f"{verdicts.total()} answers: {dict(verdicts)}")
    sys.exit(bool(verdicts["over"] or verdicts["refused"]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-cpp", type=Path, required=True, help="source of llama.cpp")
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=SCRATCH / "fit_answers.jsonl")
    parser.add_argument("--only", nargs="*", help="models of the catalogue; without it all")
    return parser.parse_args()


if __name__ == "__main__":
    main()
