"""Prefill: compute the uncached rest of a prompt, in batches that can be cancelled.

Beside other replies the batches are short, so that those continue meanwhile.
"""

from collections.abc import Generator, Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, replace

from engine.backends.base import Backend, Logits, Step
from engine.cache.recall import Recall
from engine.clock import Stopwatch
from engine.events import PromptProgress, PromptReady, ThreadsChanged
from engine.generation.reply import Reply
from engine.generation.scheduler import Computed, Scheduler, compute_step
from engine.generation.threads import Threads
from engine.images import image_end_at, image_start_at
from engine.requests import Cancellation
from engine.speculation.costs import Costs


@dataclass(frozen=True, slots=True)
class FirstRow:
    """The logits after a prompt."""

    logits: Logits
    """`[1, n_vocab]`, a copy: events are yielded before it is read."""
    elapsed_s: float
    """Time of one plain decode step, which is counted apart from the prefill."""
    is_alone: bool
    """Whether no other reply's step was computed with it."""


class Prefill:
    """Computes prompts in the sequences that `Recall` chose, and records the time per token."""

    def __init__(
        self, backend: Backend, recall: Recall, costs: Costs, threads: Threads, scheduler: Scheduler
    ) -> None:
        self._backend, self._recall, self._costs = backend, recall, costs
        self._threads, self._scheduler = threads, scheduler

    def read(
        self, reply: Reply, cancellation: Cancellation
    ) -> Generator[PromptProgress | PromptReady | ThreadsChanged | Step, Computed | None, FirstRow]:
        """Compute the prompt; return the logits of the reply's first token.

        If the cache can be cropped anywhere, the last batch includes the pending token. A seeded
        reply must be reproducible, so there the pending token is computed alone, as it is when the
        prompt is cached: kernels for several rows round differently.

        Raises:
            DecodeAborted: it was cancelled; the sequence holds the computed tokens.
            DecodeError: the backend failed.
        """
        n_prompt, n_reused = len(reply.tokens), reply.recalled.n_reused
        yield PromptProgress(n_reused, n_prompt, n_reused)
        n_last = yield from self._read_batches(reply, cancellation)
        self._recall.save_prompt(reply.recalled.slot)
        cancellation.check()
        row = yield from self._last_pass(reply, n_last)
        yield PromptProgress(n_prompt, n_prompt, n_reused)
        self._threads.use_for_steps()
        yield self._ready(reply)
        return row

    def _read_batches(
        self, reply: Reply, cancellation: Cancellation
    ) -> Generator[PromptProgress | ThreadsChanged | Step, Computed | None, int]:
        """Compute a prompt; return how many tokens before the pending one are left."""
        n_known, found, rate = len(reply.tokens) - 1, reply.recalled, self._recall.rate
        watch, elapsed_s, n_timed, n_last = Stopwatch(), 0.0, 0, 0
        may_join = reply.request.seed is None and self._backend.can_slice  # the last pass
        for start, end in self._batches(reply, n_known):
            cancellation.check()
            if end == n_known and may_join and end - start < self._backend.n_batch:
                n_last = end - start
                break
            watch.split()
            self._threads.use_for_prompt(end - start)
            given = yield from compute_step(Step(reply.sequence, unread=reply.tokens[start:end]))
            batch_s = watch.split()
            if given.is_alone:
                elapsed_s += batch_s
                n_timed += end - start
            yield PromptProgress(end, len(reply.tokens), found.n_reused)
            if (changed := self._threads.follow()) is not None:
                yield changed
            if self._recall.is_due(found.slot) or end in (found.n_branch, reply.n_lasting):
                rate.add(n_timed, elapsed_s)
                self._recall.save(found.slot)
        rate.add(n_timed, elapsed_s)
        return n_last

    def restore(
        self, reply: Reply, cancellation: Cancellation
    ) -> Generator[Step, Computed | None, None]:
        """Recompute the tokens that a reply's sequence has lost, except the pending one."""
        n_known = len(reply.tokens) - 1
        while (n_held := len(reply.sequence.tokens)) < n_known:
            cancellation.check()
            end = _whole(reply.tokens, n_held, min(n_held + self._scheduler.chunk, n_known))
            yield from compute_step(Step(reply.sequence, unread=reply.tokens[n_held:end]))

    def _ready(self, reply: Reply) -> PromptReady:
        found, recall = reply.found, self._recall
        reused_s = recall.rate.seconds_of(found.n_reused) if found.n_reused else None
        if reused_s is None and not found.n_hot:
            reused_s = reply.recalled.recompute_s
        return replace(
            found,
            elapsed_s=reply.stats.prefill_s,
            reused_prefill_s=reused_s,
            computed_restore_s=recall.restoring.seconds_of(found.n_read),
        )

    def _last_pass(self, reply: Reply, n_last: int) -> Generator[Step, Computed | None, FirstRow]:
        """Decode the pending token and the `n_last` prompt tokens before it."""
        prefill_s = reply.watch.split()
        *rest, pending = reply.tokens[-1 - n_last :]
        self._threads.use_for_prompt(1 + n_last)
        given = yield from compute_step(Step(reply.sequence, (pending,), unread=rest))
        elapsed_s = reply.watch.split()
        row_s = elapsed_s
        if n_last:
            plain_s = self._costs.plain.seconds
            row_s = min(elapsed_s / (n_last + 1) if plain_s is None else plain_s, elapsed_s)
            if given.is_alone:
                self._recall.rate.add(n_last, elapsed_s - row_s)
            prefill_s += elapsed_s - row_s
        reply.stats = replace(reply.stats, prefill_s=prefill_s)
        return FirstRow(given.logits.copy(), row_s, given.is_alone)

    def _batches(self, reply: Reply, n_end: int) -> Iterator[tuple[int, int]]:
        """Start and end of each batch; states are saved at `n_branch` and `n_lasting`."""
        stops = sorted({reply.recalled.n_branch, reply.n_lasting})
        start = reply.recalled.n_reused
        while start < n_end:
            end = min(start + self._scheduler.chunk, n_end)
            end = next((stop for stop in stops if start < stop < end), end)
            end = _whole(reply.tokens, start, end)
            yield start, end
            start = end


def _whole(tokens: Tokens[int], start: int, end: int) -> int:
    """The end of a batch, moved so that it splits no image."""
    before = image_start_at(tokens, end)
    return before if before > start else image_end_at(tokens, end)
