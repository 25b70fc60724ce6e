"""A random life of a cache: whatever a session and a user may do to it, in any order."""

import contextlib
import random

from engine.backends.base import common_prefix
from engine.cache.prefix_cache import Match, PrefixCache
from engine.errors import CacheBudgetError, StateError
from tests.engine.cache.made_up import MemoryDisk, put, restored
from tests.support.clock import Clock


class Life:
    """Lines over two tokens, so that they share starts of every length."""

    def __init__(self, chance: random.Random, disk: MemoryDisk) -> None:
        self.chance = chance
        self.disk = disk
        self.clock = Clock()
        self.lines: list[list[int]] = [[]]
        self.matches: list[Match] = []
        often = [self.put, self.put, self.put, self.read, self.read, self.work, self.work]
        self._acts = [*often, self.match, self.release, self.prefetch, self.damage, self.manage]

    def step(self, cache: PrefixCache) -> None:
        """Do one thing."""
        self.clock.at += self.chance.random() * 100
        self.chance.choice(self._acts)(cache)

    def line(self) -> list[int]:
        return [self.chance.randint(0, 1) for _ in range(self.chance.randint(1, 24))]

    def put(self, cache: PrefixCache) -> None:
        tokens = self.line()
        put(cache, tokens, owner=f"chat:{self.chance.randint(1, 3)}", seconds=self.chance.random())
        self.lines.append(tokens)

    def read(self, cache: PrefixCache) -> None:
        tokens = self.line()
        n_known = max(common_prefix(line, tokens) for line in self.lines)
        assert restored(cache, tokens) <= n_known

    def work(self, cache: PrefixCache) -> None:
        cache.work()

    def match(self, cache: PrefixCache) -> None:
        self.matches.append(cache.match(self.line()))

    def release(self, cache: PrefixCache) -> None:
        if self.matches:
            self.matches.pop(self.chance.randrange(len(self.matches))).release()

    def prefetch(self, cache: PrefixCache) -> None:
        cache.prefetch(self.line())

    def damage(self, cache: PrefixCache) -> None:
        if self.disk.files:
            self.disk.damaged.add(self.chance.choice(list(self.disk.files)))

    def manage(self, cache: PrefixCache) -> None:
        entries = cache.report().entries
        if not entries:
            return
        key = self.chance.choice(entries).key
        with contextlib.suppress(StateError, CacheBudgetError):
            match self.chance.randint(0, 5):
                case 0:
                    cache.pin(key)
                case 1 | 2:
                    cache.unpin(key)
                case 3:
                    cache.drop(key)
                case 4:
                    cache.verify(key)
                case 5:
                    cache.forget(f"chat:{self.chance.randint(1, 3)}")
