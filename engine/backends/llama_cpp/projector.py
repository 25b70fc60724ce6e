"""A projector (mmproj) of a model: images as rows of embeddings in place of tokens.

llama.cpp's libmtmd splits and encodes the image and inserts words between its segments. The words
are tokens of the vocabulary; each segment of embeddings gets its own token ids (`engine.images`),
so that a token sequence describes the whole cache. The layout depends only on the image's size: a
file is read when its embeddings are needed.
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
"""Version of the preprocessing, part of an image's token ids, so that states of others differ."""
NO_TOKEN = -1
"""Result of libmtmd for a word that is not in the vocabulary."""
MAX_IMAGES = 1024
"""Maximum number of cached layouts, of the images used last; each prompt uses all of its images."""
MAX_EMBEDDING_BYTES = 256 << 20
"""Limit of the cached embeddings, of the images used last: encoding an image takes seconds."""
UNKNOWN_IMAGE = "the prompt contains an image that is not attached: attach the image again"
NO_LIBRARY = (
    "the projector {name} cannot be loaded: this build of llama-cpp-python has no libmtmd "
    "({reason}); rebuild it with `make llama`"
)


@dataclass(frozen=True, slots=True)
class ImageChunk:
    """Image tokens between two text tokens; an image has one or more segments."""

    image: str
    """Key of the image."""
    index: int
    """Index of the segment in the image."""
    chunk: object
    """libmtmd's handle of the segment, without pixels."""
    n_tokens: int
    positions: NDArray[np.int32]
    """Positions of its tokens relative to the first one."""
    n_positions: int
    """Position of the next token relative to the first one."""


class Projector:
    """A projector with caches of layouts and embeddings; `tokens` is thread-safe.

    Args:
        path: File of the projector.
        model: llama.cpp's handle of its model.
        log: The log of this process.
        on_gpu: Whether to use the first GPU, if there is one.
        n_threads: Threads for encoding.
        n_ubatch: Tokens per ubatch of the context.

    Raises:
        ImageError: libmtmd is missing or cannot load the file, or the model has both M-RoPE
            positions and a sliding window.
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
        """Allocated buffers."""
        self.has_rows = bool(mtmd.mtmd_decode_use_mrope(self._native))
        """Whether the model uses M-RoPE: image tokens share a position."""
        self._digest = ""
        self._images: dict[str, Image] = {}
        """Images by key, with the path used last."""
        self._layouts: OrderedDict[str, tuple[tuple[int, ...], object]] = OrderedDict()
        """Tokens and chunks of each image."""
        self._segments: dict[int, ImageChunk] = {}
        """Image segments by their first token."""
        self._embedded: OrderedDict[str, list[NDArray[np.float32]]] = OrderedDict()
        self._check(model)

    def tokens(self, image: Image) -> tuple[int, ...]:
        """Tokens of an image, including the words around and between its segments.

        Raises:
            ImageError: its size is refused, or the vocabulary lacks words that it needs.
        """
        key = f"{image.sha256} {image.width}x{image.height}"
        if key not in self._layouts:
            image.check_size()
            self._layouts[key] = self._layout(image, key)
            if len(self._layouts) > MAX_IMAGES:
                self._forget(next(iter(self._layouts)))
        self._layouts.move_to_end(key)
        self._images[key] = image
        return self._layouts[key][0]

    def _layout(self, image: Image, key: str) -> tuple[tuple[int, ...], object]:
        """Tokens of an image, and libmtmd's chunks, to which its segments refer."""
        mtmd = self._mtmd
        bitmap = mtmd.mtmd_bitmap_init(image.width, image.height, None)
        try:
            chunks = self._cut(bitmap, image)
        finally:
            mtmd.mtmd_bitmap_free(bitmap)
        tokens: list[int] = []
        segments: dict[int, ImageChunk] = {}
        for index, chunk, is_text in self._chunks(chunks):
            if is_text:
                tokens += self._words(chunk)
            else:
                segment, own = self._segment(key, index, chunk)
                segments[own[0]] = segment
                tokens += own
        if NO_TOKEN in tokens:
            mtmd.mtmd_input_chunks_free(chunks)
            raise ImageError(
                f"{self._path.name} belongs to another model: it marks images with tokens "
                "that are not in this model's vocabulary"
            )
        self._segments |= segments
        return tuple(tokens), chunks

    def _segment(self, key: str, index: int, chunk: object) -> tuple[ImageChunk, tuple[int, ...]]:
        mtmd = self._mtmd
        n_tokens: int = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        own = image_tokens(f"{READING} {key} {self._hash()} {index}", n_tokens)
        found = (mtmd.mtmd_decoder_pos * n_tokens)()
        parts = mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        mtmd.mtmd_helper_image_get_decoder_pos(parts, 0, found)
        positions = np.array([each.t for each in found], np.int32)
        n_positions = int(mtmd.mtmd_input_chunk_get_n_pos(chunk))
        return ImageChunk(key, index, chunk, n_tokens, positions, n_positions), own

    def _forget(self, key: str) -> None:
        tokens, chunks = self._layouts.pop(key)
        for token in tokens:
            self._segments.pop(token, None)
        self._images.pop(key, None)
        self._mtmd.mtmd_input_chunks_free(chunks)

    def positions(self, tokens: Tokens[int]) -> NDArray[np.int32] | None:
        """Positions of all tokens and of the next one, `[n_tokens + 1]`.

        With M-RoPE (Qwen2-VL, arXiv:2409.12191) all tokens of an image have the position of its
        first one plus a row and a column; the next token's position follows the longer side.

        Returns:
            None if every position is the token's index.

        Raises:
            StateError: the tokens contain an unknown image.
        """
        if not self.has_rows or min(tokens, default=0) >= 0:
            return None
        found = np.arange(len(tokens) + 1, dtype=np.int32)
        for start in (index for index, token in enumerate(tokens) if starts_image(token)):
            segment = self._segments.get(tokens[start])
            if segment is None:
                raise StateError(UNKNOWN_IMAGE)
            end = start + segment.n_tokens
            found[end:] -= segment.n_tokens - segment.n_positions
            found[start:end] = found[start] + segment.positions[: len(found) - start]
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
        """Decode the image segment at the start of `tokens` into a context.

        Args:
            context: llama.cpp's handle.
            sequence_id: Id of the sequence.
            tokens: Tokens from the segment's start on.
            position: Position of the first one.
            n_batch: Maximum tokens of a batch.
            check: Raises `DecodeAborted` to stop.

        Returns:
            Tokens of the segment, its number of positions, and llama.cpp's status: 0 if all of it
            was decoded.

        Raises:
            ImageError: the image is missing or invalid.
            StateError: the image is unknown, or its layout was dropped.
            DecodeAborted: stopped before anything was decoded.
        """
        mtmd, segment = self._mtmd, self._segments.get(tokens[0])
        if segment is None:
            raise StateError(UNKNOWN_IMAGE)
        is_whole = mtmd.mtmd_decode_use_non_causal(self._native, segment.chunk)
        if is_whole and segment.n_tokens > min(self._n_ubatch, n_batch):
            raise ImageError(
                f"this model needs all {segment.n_tokens} tokens of an image in one ubatch, "
                f"but the ubatch size is {min(self._n_ubatch, n_batch)}: raise n_batch and n_ubatch"
            )
        rows = self._embeddings(segment, check)
        end = llama_cpp.llama_pos()
        status = mtmd.mtmd_helper_decode_image_chunk(
            self._native,
            context,
            segment.chunk,
            rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            position,
            sequence_id,
            n_batch,
            ctypes.byref(end),
            mtmd.mtmd_helper_post_decode_callback(0),
            None,
        )
        return segment.n_tokens, segment.n_positions, int(status)

    def close(self) -> None:
        """Free the projector; call it before the model is freed."""
        for key in list(self._layouts):
            self._forget(key)
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
        """Digest of the projector's file, which determines the embeddings."""
        if not self._digest:
            with self._path.open("rb") as file:
                self._digest = hashlib.file_digest(file, "sha256").hexdigest()
        return self._digest

    def _cut(self, bitmap: object, image: Image) -> object:
        """Split an image into libmtmd's chunks; the caller frees them."""
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

    def _embeddings(self, segment: ImageChunk, check: Callable[[], None]) -> NDArray[np.float32]:
        """Embeddings of a segment, `[n_tokens, d_hidden]`; encodes the whole image."""
        key = segment.image
        if key not in self._embedded:
            self._embedded[key] = self._encoded(self._images[key], check)
            while (
                len(self._embedded) > 1
                and sum(rows.nbytes for embedded in self._embedded.values() for rows in embedded)
                > MAX_EMBEDDING_BYTES
            ):
                self._embedded.popitem(last=False)
        self._embedded.move_to_end(key)
        rows = self._embedded[key][segment.index]
        assert len(rows) == segment.n_tokens
        return rows

    def _encoded(self, image: Image, check: Callable[[], None]) -> list[NDArray[np.float32]]:
        """Embeddings per chunk of an image, empty for chunks of words."""
        mtmd, encoded = self._mtmd, []
        with self._bitmap(image) as bitmap:
            chunks = self._cut(bitmap, image)
        try:
            for _, chunk, is_text in self._chunks(chunks):
                if is_text:
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

    def _chunks(self, chunks: object) -> Iterator[tuple[int, object, bool]]:
        """Index and handle of each chunk, and whether it is text."""
        mtmd = self._mtmd
        for index in range(mtmd.mtmd_input_chunks_size(chunks)):
            chunk = mtmd.mtmd_input_chunks_get(chunks, index)
            kind = mtmd.mtmd_input_chunk_get_type(chunk)
            yield index, chunk, kind == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT

    @contextmanager
    def _bitmap(self, image: Image) -> Iterator[object]:
        mtmd, pixels = self._mtmd, image.pixels()
        colours = ctypes.cast(ctypes.c_char_p(pixels), ctypes.POINTER(ctypes.c_uint8))
        bitmap = mtmd.mtmd_bitmap_init(image.width, image.height, colours)
        try:
            yield bitmap
        finally:
            mtmd.mtmd_bitmap_free(bitmap)


def _library(path: Path) -> Any:
    """The binding of libmtmd, which some builds lack."""
    if not path.is_file():
        raise ImageError(f"the projector {path} {not_a_file(path)}")
    try:
        from llama_cpp import mtmd_cpp
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ImageError(NO_LIBRARY.format(name=path.name, reason=reason)) from error
    return mtmd_cpp
