"""Speculation in other programs beside kvchat's: same prompts, model, threads and llama.cpp.

    ../.venv/bin/python peers.py MODEL --server BINARY [--node FOLDER] [--transformers PYTHON]
        [--draft MODEL] [--sets grounded,chat] [--prompts 24] [--tokens 128] [--pairs 1]
        [--out peers.jsonl]
    ../.venv/bin/python speed_page.py peers.jsonl

Every side is sent the token ids of kvchat's own prompt. For each prompt every configuration answers
once, in an order that turns; a second pair restarts all programs, since some learn from what
they generated. Speed is decoded tokens over the time from the first token to the last; kvchat's is
over the whole decoding, its first token too. An interrupted comparison goes on where it stopped.

The peers live in environments of their own:
    llama-server      built from the llama.cpp of the binding (vendor/llama.cpp of its source); it
                      computes with the binding's own libraries unless --own-libraries is given
    llama-cpp-python  the one that kvchat uses, or another one by --binding PYTHON
    node-llama-cpp    mkdir node && cd node && npm install --ignore-scripts node-llama-cpp@3.22.1
                      (npm's prebuilt binaries, so its own build of llama.cpp)
    transformers      python -m venv hf
                      hf/bin/pip install torch==2.13.0 transformers==5.23.0 gguf accelerate
A peer that is not named or cannot run is a row with the reason. kvchat itself always runs.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import llama_cpp
from speed_peers.catalogue import (
    BINDING,
    KVCHAT,
    NODE,
    SERVER,
    TRANSFORMERS,
    Mode,
    Question,
    Sampling,
    Setup,
    Side,
    chosen_modes,
    planned,
)
from speed_peers.child import binding_child, node_child, transformers_child
from speed_peers.own import Kvchat, describe_kvchat, describe_machine, make_questions
from speed_peers.records import Head, PeerError, Run, append, open_results
from speed_peers.server import LlamaServer

from engine.experiment.arm import ExperimentError
from engine.experiment.prompts import BenchPrompt, draw, read_set

WARM_UP = BenchPrompt("warm-up", "warm-up", "Count from one to thirty in words.")
WARM_UP_TOKENS = 24


def main() -> None:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended: the same command goes on from here"))
    try:
        run(options)
    except (ExperimentError, PeerError) as error:
        sys.exit(str(error))


def run(options: argparse.Namespace) -> None:
    """Read the prompts, and compare."""
    prompts = [
        prompt
        for name in options.sets.split(",")
        for prompt in draw(read_set(name), options.prompts, seed=options.seed)
    ]
    (warm_up, *questions), ends = make_questions(options.model, [WARM_UP, *prompts])
    setup = Setup(options.model, options.draft, options.ctx, options.threads, ends)
    has_draft = options.draft is not None
    modes = chosen_modes(
        options.kvchat.split(","), only=options.only, skip=options.skip, has_draft=has_draft
    )
    configurations = [asdict(mode) | {"key": mode.key} for mode in modes]
    head = Head(
        settings_of(options),
        describe_machine(),
        configurations=configurations,
        command=command_of(options),
    )
    sampling = Sampling(options.temperature, options.tokens, options.seed)
    compare(options, setup, sampling, modes, warm_up, questions, head)


def compare(
    options: argparse.Namespace,
    setup: Setup,
    sampling: Sampling,
    modes: Sequence[Mode],
    warm_up: Question,
    questions: Sequence[Question],
    head: Head,
) -> None:
    """Run what is not yet in the file, pair by pair."""
    for pair in range(options.pairs):
        sides, refused = start(options, setup, {mode.peer for mode in modes})
        try:
            for name, side in sides.items():
                head.peers[name] = side.versions or describe_kvchat()
            head.peers |= {name: {"refused": why} for name, why in refused.items()}
            runs = {run.key for run in open_results(options.out, head)}
            running = [mode for mode in modes if mode.peer in sides]
            for mode in running:
                answer(sides[mode.peer], mode, warm_up, Sampling(0.0, WARM_UP_TOKENS, 0), pair)
            plan = [
                (mode, question)
                for mode, question in planned(
                    running, questions, pair=pair, slow_prompts=options.slow_prompts
                )
                if key_of(pair, mode, question, sampling) not in runs
            ]
            run_all(plan, sides, sampling, pair, options.out)
        finally:
            for side in sides.values():
                side.close()


def run_all(
    plan: Sequence[tuple[Mode, Question]],
    sides: dict[str, Side],
    sampling: Sampling,
    pair: int,
    out: Path,
) -> None:
    """Ask, write each reply down at once, and print what is left."""
    began = time.monotonic()
    for done, (mode, question) in enumerate(plan, 1):
        run = answer(sides[mode.peer], mode, question, sampling, pair)
        append(out, run)
        left_s = (time.monotonic() - began) / done * (len(plan) - done)
        speed = run.reply.tokens_per_second if run.reply else None
        result = f"{speed:8.1f} tok/s" if speed else f"  {run.error or 'no speed'}"
        print(
            f"{done}/{len(plan)}  {left_s / 60:5.1f} min left  {question.set_name:10.10} "
            f"{question.name:28.28} {mode.key:32}{result}",
            flush=True,
        )


def answer(side: Side, mode: Mode, question: Question, sampling: Sampling, pair: int) -> Run:
    """The run of one mode, with the peer's own words where it failed."""
    run = Run(pair, question.set_name, question.name, sampling.temperature, mode.key)
    try:
        reply = side.ask(mode, question, sampling)
    except PeerError as error:
        return Run(*run.key, error=str(error))  # type: ignore[arg-type]  # the key is its fields
    return Run(*run.key, reply=reply)  # type: ignore[arg-type]  # the key is its fields


def key_of(pair: int, mode: Mode, question: Question, sampling: Sampling) -> tuple[object, ...]:
    return Run(pair, question.set_name, question.name, sampling.temperature, mode.key).key


def start(
    options: argparse.Namespace, setup: Setup, wanted: set[str]
) -> tuple[dict[str, Side], dict[str, str]]:
    """Start the programs, and print why one cannot run."""
    libraries = () if options.own_libraries else (Path(llama_cpp.__file__).parent / "lib",)
    makers: dict[str, tuple[object, Callable[[], Side]]] = {
        KVCHAT: (True, lambda: Kvchat(setup)),
        SERVER: (options.server, lambda: LlamaServer(options.server, libraries, setup)),
        BINDING: (options.binding, lambda: binding_child(options.binding, setup)),
        NODE: (options.node, lambda: node_child(options.node, setup)),
        TRANSFORMERS: (
            options.transformers,
            lambda: transformers_child(options.transformers, setup),
        ),
    }
    sides: dict[str, Side] = {}
    refused: dict[str, str] = {}
    for name, (given, make) in makers.items():
        if name not in wanted:
            continue
        if not given:
            refused[name] = "not named when this was measured"
            continue
        try:
            sides[name] = make()
        except PeerError as error:
            refused[name] = str(error)
            print(f"{name}: {error}", file=sys.stderr)
    return sides, refused


def settings_of(options: argparse.Namespace) -> dict[str, object]:
    """What must be equal in all runs of a file; names, not paths."""
    return {
        "model": options.model.name,
        "draft": options.draft.name if options.draft else None,
        "sets": [Path(name).stem for name in options.sets.split(",")],
        "prompts": options.prompts,
        "tokens": options.tokens,
        "threads": options.threads,
        "ctx": options.ctx,
        "temperature": options.temperature,
        "seed": options.seed,
    }


def command_of(options: argparse.Namespace) -> str:
    """The command with the names of this machine's folders left out."""
    given = {
        "--server": options.server and "llama-server",
        "--node": options.node and "NODE_FOLDER",
        "--transformers": options.transformers and "PYTHON",
        "--draft": options.draft and options.draft.name,
        "--sets": ",".join(Path(name).name for name in options.sets.split(",")),
        "--prompts": options.prompts,
        "--slow-prompts": options.slow_prompts,
        "--tokens": options.tokens,
        "--threads": options.threads,
        "--ctx": options.ctx,
        "--temperature": f"{options.temperature:g}",
        "--seed": options.seed,
        "--pairs": options.pairs,
        "--kvchat": options.kvchat,
    }
    words = [f"{name} {value}" for name, value in given.items() if value is not None]
    words += [f"--only '{each}'" for each in options.only]
    words += [f"--skip '{each}'" for each in options.skip]
    words += ["--own-libraries"] if options.own_libraries else []
    return " ".join(["peers.py", options.model.name, *words])


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", type=Path, help="draft model for the modes that take one")
    parser.add_argument("--server", type=Path, help="program llama-server")
    parser.add_argument("--own-libraries", action="store_true", help="those beside llama-server")
    parser.add_argument("--binding", type=Path, default=Path(sys.executable))
    parser.add_argument("--node", type=Path, help="folder in which npm installed node-llama-cpp")
    parser.add_argument("--transformers", type=Path, help="Python of an environment with it")
    parser.add_argument("--kvchat", default="suffix:auto,lookup:fixed:3", help="its policies")
    parser.add_argument("--sets", default="grounded,chat", help="names or JSONL files")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--slow-prompts", type=int, default=6, help="for transformers, per set")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctx", type=int, default=4096)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--skip", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--out", type=Path, default=Path("peers.jsonl"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
