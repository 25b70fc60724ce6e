"""What a llama-server gives to several users at once: `kvchat load` on few slots.

    python -m benchmarks.server_load MODEL --llama-server FILE [--slots 2 --slots 4]
        [--users 1,2,4,8] [--page docs/servers.md]

Each server has two threads, a cache of 2,048 tokens for each slot, and drafts by look-up. What the
planner foretells stands beside: the bound of tokens per second, and the memory beside what the
server's log says. With `--page` the
tables are written between the marks of that page.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from app.cli.load import HEADS, cells_of, foretold_by
from engine.backends.server.many_users import LoadPlan, knee_of, run_load
from engine.backends.server.session import ServerSession
from engine.configuration import (
    Configuration,
    ControllerName,
    PredictorName,
    SpeculationSettings,
)
from engine.memory.server_log import read_buffers
from engine.memory.terms import TermKind
from engine.memory.units import MIB
from engine.planning.exporting import export_request
from engine.planning.measured import loaded_bytes
from engine.planning.planner import Planner, Setup
from engine.presets.programs.llama_server import serving
from engine.process.server_process import ServerProcess, find_llama_server, free_port

BEGIN, END = "<!-- load -->", "<!-- /load -->"
N_CTX = 2048
N_TURNS, LIMIT_S = 3, 300.0


def measured(
    model: Path, program: Path, n_slots: int, users: list[int], load: LoadPlan
) -> list[str]:
    """The table of one server, in lines of Markdown."""
    drafts = SpeculationSettings(
        PredictorName.LOOKUP, controller=ControllerName.FIXED, n_draft=4, lookup_pattern_min=3
    )
    now = Configuration(
        model, N_CTX * n_slots, n_slots=n_slots, n_threads=2, n_gpu_layers=0, speculation=drafts
    )
    plan = Planner().plan(Setup(now, "llama-server"))
    port = free_port("127.0.0.1")
    server = ServerProcess(
        [*serving(export_request(plan, port=port, server=str(program))), "--log-verbosity", "4"],
        url=f"http://127.0.0.1:{port}",
        log_path=Path(tempfile.mkdtemp()) / "log",
        tell=print,
    )
    server.start()
    try:
        devices = plan.estimate.devices
        found = loaded_bytes(read_buffers(server.log_path), devices)
        session = ServerSession(Configuration.at_server(server.url))
        foretold = foretold_by(session.facts, server.url)
        results = [run_load(session, n_users, load) for n_users in users]
        session.close()
    finally:
        server.end()
    overhead = sum(each.term(TermKind.OVERHEAD).nbytes for each in devices)
    planned = (plan.estimate.total_bytes - overhead) / MIB
    allocated = sum(sum(parts.values()) for parts in found.values()) / MIB
    knee = knee_of(results)
    return [
        f"{n_slots} slots, planned {planned:.1f} MiB, allocated {allocated:.1f} MiB; "
        f"knee: {knee or f'none up to {users[-1]} users'}",
        "",
        "| " + " | ".join(HEADS) + " |",
        "|" + "--:|" * len(HEADS),
        *("| " + " | ".join(cells_of(each, foretold(each))) + " |" for each in results),
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", default=None)
    parser.add_argument("--slots", type=int, action="append")
    parser.add_argument("--users", default="1,2,4,8")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    load = LoadPlan(N_TURNS, asked.tokens, LIMIT_S)
    users = sorted(map(int, asked.users.split(",")))
    program = find_llama_server(asked.llama_server)
    lines = [
        f"{asked.model.stem} on {os.cpu_count()} processors, {load.n_turns} turns of at most "
        f"{load.max_tokens} tokens (`benchmarks/server_load.py`).",
        "",
    ]
    for n_slots in asked.slots or [2, 4]:
        lines += measured(asked.model.resolve(), program, n_slots, users, load)
    print("\n".join(lines))
    if asked.page is not None:
        text = asked.page.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not end:
            sys.exit(f"{asked.page} has no {BEGIN} with {END} behind it")
        body = "\n".join(lines).rstrip()
        asked.page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
