"""Plain greedy decoding of kvchat against a bare C loop of the same build.

    python benchmarks/plain_decoding.py MODEL [--pairs 9] [--tokens 128] [--threads 2]

Both sides get the same token ids, context, batch and threads and must generate the same tokens.
Runs alternate; the ratio of tokens per second is taken pair by pair and its median printed.
"""

import argparse
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from common import ask, load, tokens_per_second

from engine.configuration import PredictorName, SpeculationSettings
from engine.events import Finished
from engine.process.blocking_client import BlockingClient
from engine.requests import GenerationRequest

PROMPT = (
    "The harbour town had three bakeries, and each of them claimed to be the oldest. "
    "The first stood by the church, the second by the market, and the third on the quay, where "
    "the fishermen bought their bread at four in the morning. One winter the mayor decided to "
    "settle the matter once and for all, and asked the keeper of the archive to look for proof. "
) * 3 + "What the keeper found, year by year:\n\n1801: The first bakery"
N_CTX = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        loop = compile_loop(Path(folder))
        engine = load(
            options.model,
            n_ctx=N_CTX,
            n_threads=options.threads,
            speculation=SpeculationSettings(predictor=PredictorName.OFF),
        )
        ids = prompt_ids(options.model)
        compare(loop, engine, ids, options)
        engine.client.close()


def compare(
    loop: Path, engine: BlockingClient, ids: list[int], options: argparse.Namespace
) -> None:
    ratios, ours, bare = [], [], []
    for pair in range(options.pairs + 1):
        reply = generate(engine, options.tokens)
        seconds, generated = run_loop(loop, options, ids)
        if list(reply.token_ids) != generated[: len(reply.token_ids)]:
            sys.exit("the two sides generated different tokens: the comparison would be of nothing")
        if pair == 0:
            continue  # warm-up
        ours.append(tokens_per_second(reply))
        bare.append(len(generated) / seconds)
        ratios.append(ours[-1] / bare[-1])
    print(f"tokens: {len(reply.token_ids)} after a prompt of {len(ids)}, {options.threads} threads")
    print(f"kvchat    {statistics.median(ours):7.2f} tokens/s (median of {len(ours)})")
    print(f"bare loop {statistics.median(bare):7.2f} tokens/s")
    print(
        f"ratio     {statistics.median(ratios):7.3f} (min {min(ratios):.3f}, max {max(ratios):.3f})"
    )


def generate(engine: BlockingClient, n_tokens: int) -> Finished:
    return ask(engine, GenerationRequest(raw_prompt=PROMPT, max_tokens=n_tokens))


def prompt_ids(model: Path) -> list[int]:
    from engine.backends.llama_cpp.backend import LlamaCppBackend
    from engine.backends.llama_cpp.log import NativeLog
    from engine.configuration import Configuration

    settings = Configuration(model, n_ctx=256, n_gpu_layers=0, n_threads=1)
    backend = LlamaCppBackend(settings, NativeLog())
    ids = backend.vocabulary.tokenize(PROMPT, add_special=True, parse_special=True)
    backend.close()
    return ids


def run_loop(loop: Path, options: argparse.Namespace, ids: list[int]) -> tuple[float, list[int]]:
    command = [loop, options.model, str(N_CTX), str(options.threads), str(options.tokens)]
    text = " ".join(map(str, ids))
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    seconds, generated = done.stdout.splitlines()
    return float(seconds), [int(token) for token in generated.split()]


def compile_loop(folder: Path) -> Path:
    packages = Path(sysconfig.get_path("platlib"))
    libraries = packages / "llama_cpp" / "lib"
    target = folder / "bare_loop"
    source = Path(__file__).with_name("bare_loop.c")
    subprocess.run(
        [
            "cc", "-O2", "-o", target, source, f"-I{packages / 'include'}", f"-L{libraries}",
            "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}",
        ],
        check=True,
    )  # fmt: skip
    return target


if __name__ == "__main__":
    main()
