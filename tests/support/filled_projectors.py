"""Projectors of one small layer with random weights, which llama.cpp's libmtmd loads, and images.

`janus_pro` stands for those that a model reads token by token, `gemma3` for those whose images see
themselves as a whole, `idefics3` for those that cut an image into tiles with words between them,
`qwen2vl_merger` for those that count its rows and columns as positions, `qwen3vl_merger` for those
that give several layers of the model an embedding each.
"""

from pathlib import Path
from typing import Literal

import numpy as np
from PIL.Image import fromarray

from engine.model.gguf import Value
from tests.support.gguf_files import header, write

Kind = Literal["janus_pro", "gemma3", "idefics3", "qwen2vl_merger", "qwen3vl_merger"]
WIDTH, N_FF, IMAGE, PATCH, MERGE = 32, 64, 32, 8, 2
N_PATCHES = (IMAGE // PATCH) ** 2
WORDS = ("<fake_token_around_image>", "<global-img>", "\n\n", "\n")
"""Tokens that tiles stand between; in the place of bytes that no text has."""
WITH_WORDS: dict[str, Value] = {
    "tokenizer.ggml.tokens": (
        *("<unk>", "<s>", "</s>"),
        *(f"<0x{n:02X}>" for n in range(256 - len(WORDS))),
        *WORDS,
    )
}


def filled_projector(
    path: Path, kind: Kind = "janus_pro", *, n_embd: int = 128, seed: int = 5
) -> Path:
    """Write a projector of this kind to a model that is `n_embd` wide."""
    folded = WIDTH * MERGE * MERGE
    heads = {"qkv": 3 * WIDTH} if kind == "qwen3vl_merger" else dict.fromkeys("qkv", WIDTH)
    heads["out"] = WIDTH
    biases = [(f"v.blk.0.attn_{part}.bias", (n,)) for part, n in heads.items()]
    merger = [
        *biases,
        ("v.patch_embd.weight.1", (PATCH, PATCH, 3, WIDTH)),
        ("mm.0.weight", (folded, n_embd)), ("mm.0.bias", (n_embd,)),
        ("mm.2.weight", (n_embd, n_embd)), ("mm.2.bias", (n_embd,)),
    ]  # fmt: skip
    layer = [
        *((f"v.blk.0.attn_{part}.weight", (WIDTH, n)) for part, n in heads.items()),
        *((f"v.blk.0.ln{n}.{part}", (WIDTH,)) for n in (1, 2) for part in ("weight", "bias")),
        ("v.blk.0.ffn_up.weight", (WIDTH, N_FF)),
        ("v.blk.0.ffn_down.weight", (N_FF, WIDTH)),
    ]
    ends: dict[str, list[tuple[str, tuple[int, ...]]]] = {
        "janus_pro": [
            ("mm.0.weight", (WIDTH, n_embd)), ("mm.0.bias", (n_embd,)),
            ("mm.1.weight", (n_embd, n_embd)), ("mm.1.bias", (n_embd,)),
        ],
        "gemma3": [
            ("mm.input_projection.weight", (n_embd, WIDTH)), ("mm.soft_emb_norm.weight", (WIDTH,)),
        ],
        "idefics3": [("mm.model.fc.weight", (folded, n_embd))],
        "qwen2vl_merger": merger,
        "qwen3vl_merger": [
            *merger, ("v.patch_embd.bias", (WIDTH,)),
            *((f"v.deepstack.0.norm.{part}", (folded,)) for part in ("weight", "bias")),
            ("v.deepstack.0.fc1.weight", (folded, n_embd)), ("v.deepstack.0.fc1.bias", (n_embd,)),
            ("v.deepstack.0.fc2.weight", (n_embd, n_embd)), ("v.deepstack.0.fc2.bias", (n_embd,)),
        ],
    }  # fmt: skip
    shapes = [
        ("v.patch_embd.weight", (PATCH, PATCH, 3, WIDTH)),
        ("v.position_embd.weight", (WIDTH, N_PATCHES)),
        ("v.post_ln.weight", (WIDTH,)),
        ("v.post_ln.bias", (WIDTH,)),
        *layer,
        *ends[kind],
    ]
    tensors, offset = [], 0
    for name, shape in shapes:
        tensors.append((name, shape, 0, offset))
        offset += -(-int(np.prod(shape)) * 4 // 32) * 32
    write(path, header(_values(kind, n_embd), tensors), data_bytes=offset)
    rng = np.random.default_rng(seed)
    with path.open("r+b") as file:
        start = path.stat().st_size - offset
        for _, shape, _, at in tensors:
            file.seek(start + at)
            file.write(rng.normal(0.0, 0.3, shape).astype("<f4").tobytes())
    return path


def _values(kind: Kind, n_embd: int) -> dict[str, object]:
    return {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": kind,
        "clip.use_gelu": True,
        "clip.vision.embedding_length": WIDTH,
        "clip.vision.feed_forward_length": N_FF,
        "clip.vision.block_count": 1,
        "clip.vision.projection_dim": n_embd,
        "clip.vision.attention.head_count": 2,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.is_deepstack_layers": [kind == "qwen3vl_merger"],
        "clip.vision.image_size": IMAGE,
        "clip.vision.patch_size": PATCH,
        "clip.vision.preproc_image_size": 2 * IMAGE,
        "clip.vision.projector.scale_factor": MERGE,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
    }


def png(path: Path, *, seed: int = 0, width: int = 40, height: int = 30) -> Path:
    """Write an image of random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    fromarray(pixels).save(path, "PNG")
    return path
