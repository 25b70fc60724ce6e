"""How soon a chat goes on: prefilled from nothing, and from each tier of the cache.

    python benchmarks/resume.py MODEL [--tokens 2000] [--pairs 5] [--threads 2] [--drop-all]

Each pair is a chat of its own of about `--tokens` tokens, asked the same kind of question in every
state: about 16 new tokens, the template's own among them. Timed is from the request to the event of
the first token, through the engine's process:

    nothing     no tier holds any of it
    hot         the context itself holds it
    warm        another chat took the context's place; it lies in main memory
    cold        a new process, and the files' pages are dropped from the page cache
    prefetched  as cold, but the chat was opened a second before it was asked

"Cold" reads from the disk what `mincore` says is not in the page cache; the share that was still
there is printed. The state of the cache is what a setting `slots = 1` gives: one chat is hot.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import Timed, ask_timed, drop_pages, load, resident_share, wait_for_cache

from engine.cache.report import CacheSettings
from engine.configuration import PredictorName, SpeculationSettings
from engine.process.blocking_client import BlockingClient
from engine.requests import GenerationRequest, Message

SENTENCE = "The keeper wrote down every passing ship, its flag, its course and the weather. "
TOKENS_OF_SENTENCE = 17
QUESTIONS = tuple(
    f"{season} came: what did the keeper write down?"
    for season in ("Winter", "Spring", "Summer", "Autumn")
)
"""Different from their first word on, so that a tier holds nothing of the next one."""
PLACES = ("nothing", "hot", "warm", "cold", "prefetched")
GOALS = {"warm": 1 / 50, "cold": 1 / 20}
PREFETCH_S = 1.0


def main() -> None:
    options = parsed()
    with tempfile.TemporaryDirectory(prefix="kvchat-resume-") as folder:
        bench = Bench(options, Path(folder))
        times = [bench.pair(number) for number in range(options.pairs)]
        bench.close()
    report(times, bench)


class Bench:
    """An engine whose cold tier lies in a folder of its own."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self.how_dropped = ""
        self.resident: list[float] = []
        self.n_prompt = 0
        self._engine = self._start()

    def pair(self, number: int) -> dict[str, Timed]:
        """The reply of one new chat from each place."""
        chat = f"chat:{number}"
        n_sentences = self._options.tokens // TOKENS_OF_SENTENCE
        told = Message("user", f"Log number {number}. " + SENTENCE * n_sentences)
        timed = {"nothing": self._ask(chat, (told,))}
        first = timed["nothing"].finished
        answer = Message("assistant", first.text, first.token_ids, first.vocabulary_id)
        turns = [(told, answer, Message("user", question)) for question in QUESTIONS]
        timed["hot"] = self._ask(chat, turns[0])
        self._another_chat(number)
        timed["warm"] = self._ask(chat, turns[1])
        self._restart()
        timed["cold"] = self._ask(chat, turns[2])
        self._restart()
        self._engine.client.prefetch(turns[3][:2])
        time.sleep(PREFETCH_S)
        timed["prefetched"] = self._ask(chat, turns[3])
        self.n_prompt = timed["hot"].reuse.n_prompt
        print("  ".join(f"{place} {_ms(timed[place])}" for place in PLACES), flush=True)
        return timed

    def close(self) -> None:
        self._engine.client.close()

    def _ask(self, owner: str, messages: Sequence[Message]) -> Timed:
        request = GenerationRequest(messages=tuple(messages), max_tokens=16, owner=owner)
        return ask_timed(self._engine, request)

    def _another_chat(self, number: int) -> None:
        other = Message("user", f"Something else, number {number}: name three colours.")
        self._ask(f"other:{number}", (other,))

    def _restart(self) -> None:
        self._engine.client.close()
        files = [path for path in self._folder.rglob("*") if path.is_file()]
        self.how_dropped = drop_pages(files, everything=self._options.drop_all)
        self.resident.append(resident_share(files))
        self._engine = self._start()

    def _start(self) -> BlockingClient:
        engine = load(
            self._options.model,
            cache=CacheSettings(folder=self._folder / "states"),
            n_ctx=max(4096, 2 * self._options.tokens),
            n_threads=self._options.threads,
            type_k=self._options.kv,
            type_v=self._options.kv,
            flash_attention=self._options.flash_attention,
            speculation=SpeculationSettings(predictor=PredictorName.OFF),
        )
        wait_for_cache(engine)
        return engine


def report(times: Sequence[dict[str, Timed]], bench: Bench) -> None:
    print(f"\nprompt of {bench.n_prompt} tokens; cold: {bench.how_dropped}")
    print(f"  of the files {max(bench.resident):.1%} at most were left in the page cache")
    print(
        f"  {'':12}{'first token':>12}{'of prefill':>12}{'goal':>8}{'restoring':>12}"
        "   hot  warm  cold  new tokens"
    )
    for place in PLACES:
        runs = [timed[place] for timed in times]
        seconds = statistics.median(run.first_token_s for run in runs)
        ratio = statistics.median(
            timed[place].first_token_s / timed["nothing"].first_token_s for timed in times
        )
        goal = f"1/{round(1 / GOALS[place])}" if place in GOALS else ""
        reuse = runs[-1].reuse
        restore_s = statistics.median(run.reuse.restore_s for run in runs)
        share = f"1/{1 / ratio:.1f}"
        print(
            f"  {place:12}{1e3 * seconds:9.1f} ms{share:>12}{goal:>8}{1e3 * restore_s:9.1f} ms"
            f"  {reuse.n_hot:5} {reuse.n_warm:5} {reuse.n_cold:5} {reuse.n_read:11}"
        )
    print(f"  medians of {len(times)} pairs")


def _ms(timed: Timed) -> str:
    return f"{1e3 * timed.first_token_s:.1f} ms"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", default="f16", help="type of keys and values")
    parser.add_argument("--flash-attention", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--drop-all", action="store_true", help="drop_caches where allowed (root)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
