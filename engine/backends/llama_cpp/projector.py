"""A projector (mmproj) beside a model: images as rows of embeddings that stand for tokens.

llama.cpp's libmtmd reads and cuts the image, encodes it and says where words go between its parts.
Those words are tokens of the vocabulary; each stretch of embeddings gets tokens of its own
(`engine.images`), so that a line of tokens says all that the cache holds. Its layout follows from
the image's size alone: a file is read when its embeddings are needed, and not before.
"""

import ctypes
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from engine.backends.llama_cpp.log import NativeLog
from engine.errors import StateError
from engine.images import Image, ImageError, image_tokens, starts_image
from engine.model.identity import not_a_file

MARKER = b"<__media__>"
READING = "upright on white"
"""How pixels are read; it goes into an image's tokens, so that states of another reading differ."""
NO_TOKEN = -1
"""Where libmtmd looked for a word in the vocabulary that is not there."""
MAX_IMAGES = 1024
"""Images whose layout is known, those named last: what a line holds is named with each prompt."""
KEPT_BYTES = 256 << 20
"""Embeddings that are kept, of the images used last: reading an image again takes seconds."""
UNKNOWN_IMAGE = "the prompt contains an image that is not attached"
NO_LIBRARY = (
    "the projector {name} cannot be loaded: this build of llama-cpp-python has no libmtmd "
    "({reason}); rebuild it with `make llama`"
)


@dataclass(frozen=True, slots=True)
class ImageChunk:
    """The tokens of an image between two words."""

    image: str
    """Key of the image."""
    index: int
    """Which of the image's parts it is."""
    chunk: object
    """libmtmd's description of it, without pixels."""
    n_tokens: int
    positions: NDArray[np.int32]
    """Of its tokens, counted from the first one's."""
    n_positions: int
    """How much further the position of the token after it is than that of its first one."""


class Projector:
    """One projector and what it knows of images; `tokens` may be asked from any thread.

    Args:
        path: Its file.
        model: llama.cpp's handle of the model that it belongs to.
        log: The log of this process.
        on_gpu: Whether it goes to the first GPU, if there is one.
        n_threads: Threads while an image is encoded.
        n_ubatch: Tokens that the context computes at once.

    Raises:
        ImageError: libmtmd is missing or refused the file, or the model counts the rows and
            columns of an image as positions (M-RoPE) and has a sliding window too.
    """

    def __init__(
        self,
        path: Path,
        model: object,
        log: NativeLog,
        *,
        on_gpu: bool,
        n_threads: int,
        n_ubatch: int,
    ) -> None:
        self._path = path
        self._n_ubatch = n_ubatch
        self._width: int = llama_cpp.llama_model_n_embd_inp(model)
        self._mtmd = mtmd = _library(path)
        mtmd.mtmd_helper_log_set(log.callback, ctypes.c_void_p(0))
        params = mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads = on_gpu, n_threads
        params.print_timings = False
        log.clear()
        self._native = mtmd.mtmd_init_from_file(os.fsencode(path), model, params)
        if not self._native:
            raise ImageError(
                f"the projector {path.name} could not be loaded for this model: "
                f"{log.errors() or 'llama.cpp gave no reason'}"
            )
        self.buffers = log.projector_buffers()
        """What it has allocated."""
        self.has_rows = bool(mtmd.mtmd_decode_use_mrope(self._native))
        """Whether rows and columns of images are positions, so that tokens share one."""
        self._digest = ""
        self._images: dict[str, Image] = {}
        """Images by key, each where it was named last."""
        self._known: OrderedDict[str, tuple[tuple[int, ...], object]] = OrderedDict()
        """What stands for an image, and libmtmd's parts of it, which `_stretches` names."""
        self._stretches: dict[int, ImageChunk] = {}
        """Stretches by their first token."""
        self._kept: OrderedDict[str, list[NDArray[np.float32]]] = OrderedDict()
        self._check(model)

    def tokens(self, image: Image) -> tuple[int, ...]:
        """What stands for an image in a line, words around and between its parts included.

        Raises:
            ImageError: its size is refused, or it wants words that the vocabulary lacks.
        """
        key = f"{image.sha256} {image.width}x{image.height}"
        known = self._known.get(key)
        if known is not None:
            self._images[key] = image
            self._known.move_to_end(key)
            return known[0]
        image.check_size()
        mtmd, found = self._mtmd, []
        bitmap = mtmd.mtmd_bitmap_init(image.width, image.height, None)
        try:
            chunks = self._cut(bitmap, image)  # stays: decoding names its parts
        finally:
            mtmd.mtmd_bitmap_free(bitmap)
        stretches: dict[int, ImageChunk] = {}
        for index in range(mtmd.mtmd_input_chunks_size(chunks)):
            chunk = mtmd.mtmd_input_chunks_get(chunks, index)
            n_tokens: int = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
            if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
                found += self._words(chunk)
                continue
            own = image_tokens(f"{READING} {key} {self._hash()} {index}", n_tokens)
            places = (mtmd.mtmd_decoder_pos * n_tokens)()
            parts = mtmd.mtmd_input_chunk_get_tokens_image(chunk)
            mtmd.mtmd_helper_image_get_decoder_pos(parts, 0, places)
            stretches[own[0]] = ImageChunk(
                key, index, chunk, n_tokens,
                np.array([place.t for place in places], np.int32),
                int(mtmd.mtmd_input_chunk_get_n_pos(chunk)),
            )  # fmt: skip
            found += own
        if NO_TOKEN in found:
            mtmd.mtmd_input_chunks_free(chunks)
            raise ImageError(
                f"{self._path.name} belongs to another model: it marks images with tokens "
                "that are not in this model's vocabulary"
            )
        self._stretches |= stretches
        self._images[key] = image
        self._known[key] = tuple(found), chunks
        while len(self._known) > MAX_IMAGES:
            self._forget(*self._known.popitem(last=False))
        return tuple(found)

    def _forget(self, key: str, known: tuple[tuple[int, ...], object]) -> None:
        """Forget an image whose layout is no longer known."""
        tokens, chunks = known
        for token in tokens:
            self._stretches.pop(token, None)
        self._images.pop(key, None)
        self._mtmd.mtmd_input_chunks_free(chunks)

    def positions(self, tokens: Tokens[int]) -> NDArray[np.int32] | None:
        """The position of every token of a line, and of one after it, `[n_tokens + 1]`.

        Multimodal rotary positions (M-RoPE; Qwen2-VL, arXiv:2409.12191): an image's tokens have the
        position of its first one, with rows and columns beside it, and what follows it begins
        after the longer side.

        Returns:
            None where every token's position is its place in the line.

        Raises:
            StateError: the line holds an image that was never asked for here.
        """
        if not self.has_rows or min(tokens, default=0) >= 0:
            return None
        found = np.arange(len(tokens) + 1, dtype=np.int32)
        for start in (place for place, token in enumerate(tokens) if starts_image(token)):
            stretch = self._stretches.get(tokens[start])
            if stretch is None:
                raise StateError(UNKNOWN_IMAGE)
            end = start + stretch.n_tokens
            found[end:] -= stretch.n_tokens - stretch.n_positions
            found[start:end] = found[start] + stretch.positions[: len(found) - start]
        return found

    def decode(
        self,
        context: object,
        sequence_id: int,
        tokens: Tokens[int],
        position: int,
        *,
        n_batch: int,
        check: Callable[[], None],
    ) -> tuple[int, int, int]:
        """Decode the stretch that `tokens` begin with into a context.

        Args:
            context: llama.cpp's handle.
            sequence_id: Of the sequence.
            tokens: Of the line from the stretch's start on.
            position: Of the first of them.
            n_batch: Most tokens of one batch.
            check: Raises `DecodeAborted` where it is to stop.

        Returns:
            Tokens of the stretch, positions that it takes, and llama.cpp's status, 0 where all of
            it was decoded.

        Raises:
            ImageError: the image is gone, or no image.
            StateError: it was never asked for here, or so long ago that it is forgotten.
            DecodeAborted: it was stopped before anything was decoded.
        """
        mtmd, stretch = self._mtmd, self._stretches.get(tokens[0])
        if stretch is None:
            raise StateError(UNKNOWN_IMAGE)
        is_whole = mtmd.mtmd_decode_use_non_causal(self._native, stretch.chunk)
        if is_whole and stretch.n_tokens > min(self._n_ubatch, n_batch):
            raise ImageError(
                f"this model needs all {stretch.n_tokens} tokens of an image in one ubatch, "
                f"but the ubatch size is {min(self._n_ubatch, n_batch)}: raise n_batch and "
                "n_ubatch"
            )
        rows = self._embeddings(stretch, check)
        end = llama_cpp.llama_pos()
        status = mtmd.mtmd_helper_decode_image_chunk(
            self._native,
            context,
            stretch.chunk,
            rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            position,
            sequence_id,
            n_batch,
            ctypes.byref(end),
            mtmd.mtmd_helper_post_decode_callback(0),
            None,
        )
        return stretch.n_tokens, stretch.n_positions, int(status)

    def close(self) -> None:
        """Free it; its model must still be there."""
        while self._known:
            self._forget(*self._known.popitem())
        self._mtmd.mtmd_free(self._native)

    def _check(self, model: object) -> None:
        if self.has_rows and llama_cpp.llama_model_n_swa(model):
            self.close()
            raise ImageError(
                "kvchat cannot read images with this model, which combines M-RoPE with a "
                "sliding window: use llama-server (`kvchat serve`)"
            )
        if not self._mtmd.mtmd_support_vision(self._native):
            self.close()
            raise ImageError(f"the projector {self._path.name} encodes audio, not images")

    def _hash(self) -> str:
        """Digest of the projector's file: another one makes other embeddings."""
        if not self._digest:
            with self._path.open("rb") as file:
                self._digest = hashlib.file_digest(file, "sha256").hexdigest()
        return self._digest

    def _cut(self, bitmap: object, image: Image) -> object:
        """The parts of an image as libmtmd has them; whoever asked frees them."""
        mtmd = self._mtmd
        chunks = mtmd.mtmd_input_chunks_init()
        text = mtmd.mtmd_input_text(MARKER, len(MARKER), False, True)
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        if mtmd.mtmd_tokenize(self._native, chunks, ctypes.byref(text), bitmaps, 1):
            mtmd.mtmd_input_chunks_free(chunks)
            raise ImageError(
                f"{self._path.name} refused {image.name} ({image.width} x {image.height} pixels): "
                f"attach an image of another size"
            )
        return chunks

    def _words(self, chunk: object) -> list[int]:
        n_words = ctypes.c_size_t()
        words = self._mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n_words))
        return [int(word) for word in words[: n_words.value]]

    def _embeddings(self, stretch: ImageChunk, check: Callable[[], None]) -> NDArray[np.float32]:
        """The rows of a stretch, `[n_tokens, d_hidden]`; all of its image are encoded at once."""
        key = stretch.image
        if key not in self._kept:
            self._kept[key] = self._encoded(self._images[key], check)
            while len(self._kept) > 1 and self._n_kept_bytes() > KEPT_BYTES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        rows = self._kept[key][stretch.index]
        assert len(rows) == stretch.n_tokens, "the pixels of an image do not change its layout"
        return rows

    def _n_kept_bytes(self) -> int:
        return sum(rows.nbytes for kept in self._kept.values() for rows in kept)

    def _encoded(self, image: Image, check: Callable[[], None]) -> list[NDArray[np.float32]]:
        """A part of an image at each place, and nothing where words stand."""
        mtmd, encoded = self._mtmd, []
        with self._bitmap(image) as bitmap:
            chunks = self._cut(bitmap, image)
        try:
            for index in range(mtmd.mtmd_input_chunks_size(chunks)):
                chunk = mtmd.mtmd_input_chunks_get(chunks, index)
                if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
                    encoded.append(np.empty((0, self._width), np.float32))
                    continue
                check()
                if mtmd.mtmd_encode_chunk(self._native, chunk):
                    raise ImageError(f"{self._path.name} could not encode {image.name}")
                shape = (mtmd.mtmd_input_chunk_get_n_tokens(chunk), self._width)
                rows = np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(self._native), shape)
                encoded.append(rows.copy())
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
        return encoded

    @contextmanager
    def _bitmap(self, image: Image) -> Iterator[object]:
        """The pixels of an image."""
        mtmd, pixels = self._mtmd, image.pixels()
        colours = ctypes.cast(ctypes.c_char_p(pixels), ctypes.POINTER(ctypes.c_uint8))
        bitmap = mtmd.mtmd_bitmap_init(image.width, image.height, colours)
        try:
            yield bitmap
        finally:
            mtmd.mtmd_bitmap_free(bitmap)


def _library(path: Path) -> Any:
    """The binding of libmtmd, which not every build brings."""
    if not path.is_file():
        raise ImageError(f"the projector {path} {not_a_file(path)}")
    try:
        from llama_cpp import mtmd_cpp
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ImageError(NO_LIBRARY.format(name=path.name, reason=reason)) from error
    return mtmd_cpp
