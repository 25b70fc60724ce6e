"""Which tensors a model of an architecture has, and of which shape.

The rules follow `load_arch_tensors` of llama.cpp 0c1e57098 (`src/models/*.cpp`), which refuses a
file whose tensors differ in name or shape.
"""

from engine.errors import ModelFileError
from engine.model.layouts.classic import CLASSIC
from engine.model.layouts.deepseek4 import DEEPSEEK4
from engine.model.layouts.delta_net import DELTA_FAMILIES
from engine.model.layouts.dense import DENSE
from engine.model.layouts.experts import EXPERTS
from engine.model.layouts.family import Family
from engine.model.layouts.gemma import GEMMA
from engine.model.layouts.keys import Keys
from engine.model.layouts.latent import LATENT_FAMILIES
from engine.model.layouts.qwen4exp import QWEN4EXP
from engine.model.layouts.recurrent import RECURRENT
from engine.model.layouts.rows import Shape
from engine.model.layouts.rwkv import RWKV
from engine.model.layouts.sparse import SPARSE

FAMILIES: dict[str, Family] = {
    **DENSE, **CLASSIC, **GEMMA, **EXPERTS, **LATENT_FAMILIES, **DEEPSEEK4, **DELTA_FAMILIES,
    **RECURRENT, **RWKV, **SPARSE, **QWEN4EXP,
}  # fmt: skip


def tensor_shapes(keys: Keys) -> tuple[Shape, ...]:
    """Give name and dimensions of every tensor of a model.

    Raises:
        ModelFileError: an architecture that has no rules here.
    """
    family = FAMILIES.get(keys.architecture)
    if family is None:
        raise ModelFileError(
            f"kvchat has no tensor table for the architecture {keys.architecture!r}: "
            "plan with the model's own GGUF file"
        )
    return tuple(family.tensors(keys))
