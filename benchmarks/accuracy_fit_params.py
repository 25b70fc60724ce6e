"""Weights by device as `llama-fit-params` of the same build prints them, in whole MiB."""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from accuracy_comparison import MIB, Row, part_of

CASES = {"4k", "half GPU 32k", "2 GPUs 3:1", "GPU experts on CPU"}
"""One case of each placement: weights depend on nothing else."""


@dataclass
class FitParams:
    """The program, asked once for each model and placement."""

    binary: Path
    stand_in: Path | None
    known: dict[str, dict[str, int]] = field(default_factory=dict)

    def ask(self, row: Row) -> dict[str, int] | None:
        """MiB by device; None for a case that is not asked, or that the program refuses."""
        key = str(row["key"])
        if row["case"] not in CASES:
            return None
        if key not in self.known:
            self.known[key] = self._ask(row)
        return self.known[key] or None

    def _ask(self, row: Row) -> dict[str, int]:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.binary.parent)}
        if row["n_gpus"]:
            shown = {"LD_PRELOAD": str(self.stand_in), "STAND_IN_GPUS": str(row["n_gpus"])}
            environment |= shown
        command = [str(self.binary), "-m", str(row["path"]), *_arguments(row)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return dict(_device(line) for line in done.stdout.splitlines() if len(line.split()) == 4)


def _arguments(row: Row) -> list[str]:
    """A small context, weights without copies in repacked buffers, which it leaves out."""
    model = part_of(part_of(row, "request"), "configuration")
    split = model["tensor_split"]
    assert isinstance(split, list)
    n_layers = model["n_gpu_layers"]
    return [
        "-fitp", "on", "-c", "4096", "-np", "1", "--no-repack",
        *(["-ngl", str(n_layers)] if n_layers != -1 else []),
        *(["-ts", ",".join(map(str, split))] if split else []),
        *(["--cpu-moe"] if model["n_cpu_moe"] == -1 else []),
    ]  # fmt: skip


def _device(line: str) -> tuple[str, int]:
    name, weights, _, _ = line.split()
    return ("CPU" if name == "Host" else f"GPU {name.removeprefix('GPU')}"), int(weights)


def agreement(rows: list[Row]) -> tuple[int, int, list[str]]:
    """The devices where the formula is within 1 MiB, all devices, and the others in words.

    The program rounds down, so it may say up to 1 MiB less than there is.
    """
    n_met = n_all = 0
    others = []
    for row in rows:
        printed, formula = row.get("fit_params"), row.get("formula")
        if not isinstance(printed, dict) or not isinstance(formula, dict) or "error" in formula:
            continue
        for device, mib in printed.items():
            term = formula["devices"].get(device, {}).get("weights", {"nbytes": 0})
            n_all += 1
            if -MIB <= term["nbytes"] - mib * MIB < 2 * MIB:
                n_met += 1
            else:
                others.append(
                    f"{row['model']}, {row['case']}, {device}: formula "
                    f"{term['nbytes'] / MIB:.1f}, llama-fit-params {mib} MiB"
                )
    return n_met, n_all, others
