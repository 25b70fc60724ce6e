"""A token sequence with one cache of tensors per layer."""

from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING

from engine.backends.base import Sequence, State, check_cells
from engine.backends.torch.caches.base import LayerCache
from engine.backends.torch.state import SavedTokens, join
from engine.errors import CropUnsupportedError, EngineError, StateError

if TYPE_CHECKING:
    from engine.backends.torch.backend import TorchBackend


class TorchSequence(Sequence):
    """Invariant: every cache holds exactly `tokens`, as far as its type stores them."""

    _backend: "TorchBackend"

    def __init__(
        self,
        backend: "TorchBackend",
        number: int,
        caches: list[LayerCache],
    ) -> None:
        super().__init__(backend)
        self.number = number
        self.caches = caches

    def can_crop(self, length: int) -> bool:
        if length in (0, len(self._tokens)):
            return True
        return length <= len(self._tokens) and all(each.can_crop(length) for each in self.caches)

    def crop(self, length: int) -> None:
        if not self.can_crop(length):
            raise CropUnsupportedError(
                f"the cache of {len(self._tokens)} tokens cannot be cropped to {length}: a "
                "layer no longer has these tokens; clear the cache and prefill the whole "
                "prompt again"
            )
        if length < len(self._tokens):
            for cache in self.caches:
                cache.crop(length)
            del self._tokens[length:]

    def save(self, start: int = 0) -> State:
        n_held = len(self._tokens)
        if not 0 <= start < n_held:
            raise StateError(f"no state begins at token {start}: the cache has {n_held} tokens")
        whole = SavedTokens(0, n_held, [cache.held() for cache in self.caches])
        return (whole.since(start) if start else whole).to_bytes()

    def load(self, tokens: Tokens[int], states: Tokens[State]) -> None:
        self._backend.check_open()
        check_cells(len(tokens), 0, self._backend.n_ctx)
        self.crop(0)
        try:
            layers = join(states, len(tokens))
            if len(layers) != len(self.caches):
                raise StateError(
                    f"the saved state has {len(layers)} layers, but the model has "
                    f"{len(self.caches)}"
                )
            for cache, layer in zip(self.caches, layers, strict=True):
                cache.hold(layer, len(tokens))
        except EngineError:
            self._forget()
            raise
        self._tokens = list(tokens)

    def close(self) -> None:
        if self._backend.opened.get(self.number) is not self:
            return
        self._forget()
        del self._backend.opened[self.number]

    def commit(self, tokens: Tokens[int]) -> None:
        """The caches hold these tokens too."""
        self._tokens.extend(tokens)

    def roll_back(self) -> None:
        """Restore the caches to `tokens` after a failed forward pass, or empty them."""
        n_held = len(self._tokens)
        if all(cache.length == n_held or cache.can_crop(n_held) for cache in self.caches):
            for cache in self.caches:
                cache.crop(n_held)
        else:
            self._forget()

    def _forget(self) -> None:
        for cache in self.caches:
            cache.crop(0)
        self._tokens = []
