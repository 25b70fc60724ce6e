"""What keeping computed tokens costs a reply that is being made meanwhile.

    python benchmarks/cache_writes.py MODEL [--tokens 2000] [--every 5] [--pairs 8] [--threads 2]

Pairs of the same greedy reply behind the same prompt of about `--tokens` tokens, each as long as
`--every` seconds of decoding, in an order that turns: one idle, and one in which a snapshot of all
of the prompt is made after the first token, put into main memory, and written and flushed to disk
in the background. Each snapshot stands for a line of its own, so that nothing of it is there yet.
Speed is that of the whole reply behind its first token, the making of the snapshot included.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from engine.cache.namespace import FileHashes, namespace_of
from engine.cache.prefix_cache import PrefixCache
from engine.cache.report import CacheSettings
from engine.cache.snapshot_store import SnapshotStore
from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.events import Finished, TokensCommitted
from engine.load import LoadedSession, load_session
from engine.memory.units import MIB
from engine.requests import Cancellation, GenerationRequest

SENTENCE = "The keeper wrote down every passing ship, its flag, its course and the weather. "
TOKENS_OF_SENTENCE = 17
FIRST_TOKEN_OF_LINES = 1000
WARM_UP_TOKENS = 64
GOAL = 0.95
WRITTEN_S = 60.0


class Bench:
    """A session, and tiers that it does not fill by itself."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        n_prompt = options.tokens
        configuration = Configuration(
            model_path=options.model.resolve(),
            n_ctx=2 * n_prompt + 4096,
            n_threads=options.threads,
            speculation=SpeculationSettings(predictor=PredictorName.OFF),
        )
        self._loaded: LoadedSession = load_session(configuration)
        self._session = self._loaded.session
        self._prompt = SENTENCE * (n_prompt // TOKENS_OF_SENTENCE)
        self._states = folder / "states"
        backend = self._loaded.target
        namespace = namespace_of(
            configuration,
            state_format=backend.state_format,
            hash_file=FileHashes(None).digest,
        )
        self._tiers = PrefixCache(
            namespace,
            can_slice=backend.can_slice,
            split_state=backend.split_state,
            store=SnapshotStore(self._states),
            settings=CacheSettings(warm_bytes=256 * MIB, cold_bytes=8192 * MIB),
        )
        self.n_written = 0
        self.state_bytes = 0
        self.save_s: list[float] = []
        self.n_tokens = WARM_UP_TOKENS
        speed = self.reply(with_snapshot=False)
        self.n_tokens = max(8, round(speed * options.every))

    def reply(self, *, with_snapshot: bool) -> float:
        """The tokens a second of one reply."""
        request = GenerationRequest(raw_prompt=self._prompt, max_tokens=self.n_tokens)
        first_at, n_tokens = None, 0
        for event in self._session.generate(request, Cancellation()):
            if isinstance(event, TokensCommitted) and event.tokens:
                n_tokens += len(event.tokens)
                if first_at is None:
                    first_at = time.perf_counter()
                    if with_snapshot:
                        self._keep()
            if isinstance(event, Finished):
                break
        if first_at is None or n_tokens < self.n_tokens:
            sys.exit(f"the model ended its reply after {n_tokens} tokens: try another one")
        return (n_tokens - 1) / (time.perf_counter() - first_at)

    def wait_until_written(self) -> None:
        """Wait until every snapshot is a file."""
        end = time.monotonic() + WRITTEN_S
        while len(list(self._states.glob("*.kv"))) < self.n_written:
            if time.monotonic() > end:
                sys.exit(f"a snapshot was not on disk after {WRITTEN_S:.0f} s")
            time.sleep(0.05)

    def close(self) -> None:
        self._tiers.close(WRITTEN_S)
        self._session.close()

    def _keep(self) -> None:
        started = time.perf_counter()
        sequence = self._session._recall._hot.slots[0].sequence
        state = sequence.save()
        self.save_s.append(time.perf_counter() - started)
        self.state_bytes = len(state)
        self.n_written += 1
        tokens = [FIRST_TOKEN_OF_LINES + self.n_written, *sequence.tokens[1:]]
        self._tiers.put(tokens, 0, state, recompute_s=1.0, owner="chat:1")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between snapshots")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where snapshots are written; default: /tmp")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvchat-writes-", dir=options.folder) as folder:
        bench = Bench(options, Path(folder))
        pairs = [measure(bench, is_idle_first=n % 2 == 0) for n in range(options.pairs)]
        bench.close()
    report(pairs, bench, options.every)


def measure(bench: Bench, *, is_idle_first: bool) -> tuple[float, float]:
    """The speed of a reply that is alone, and of one beside a snapshot."""
    speeds = {}
    for with_snapshot in (False, True) if is_idle_first else (True, False):
        bench.wait_until_written()
        speeds[with_snapshot] = bench.reply(with_snapshot=with_snapshot)
    print(f"idle {speeds[False]:7.2f} tok/s, writing {speeds[True]:7.2f} tok/s", flush=True)
    return speeds[False], speeds[True]


def report(pairs: Sequence[tuple[float, float]], bench: Bench, every_s: float) -> None:
    ratios = [writing / idle for idle, writing in pairs]
    print(f"\nsnapshot of {bench.state_bytes / MIB:.1f} MiB every {every_s:g} s")
    print(f"  made in      {1e3 * statistics.median(bench.save_s):7.1f} ms (on the token path)")
    print(f"  idle         {statistics.median(idle for idle, _ in pairs):7.2f} tok/s")
    print(f"  writing      {statistics.median(writing for _, writing in pairs):7.2f} tok/s")
    print(f"  ratio        {statistics.median(ratios):7.3f}  goal {GOAL}")
    print(f"               {min(ratios):.3f} to {max(ratios):.3f} in {len(pairs)} pairs")


if __name__ == "__main__":
    main()
