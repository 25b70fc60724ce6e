"""Which tensors a model of an architecture has, and of which shape.

The rules follow `load_arch_tensors` of llama.cpp 0c1e57098 (`src/models/*.cpp`), which refuses a
file whose tensors differ in name or shape.
"""

from engine.errors import ModelFileError
from tests.layouts.dense import DENSE
from tests.layouts.experts import EXPERTS
from tests.layouts.hybrid import HYBRID
from tests.layouts.latent import LATENT_LAYOUTS
from tests.layouts.recurrent import RECURRENT
from tests.layouts.tables import Keys, Layout, Shape

LAYOUTS: dict[str, Layout] = DENSE | EXPERTS | LATENT_LAYOUTS | HYBRID | RECURRENT


def tensor_shapes(keys: Keys) -> tuple[Shape, ...]:
    """Name and dimensions of every tensor of a model.

    Raises:
        ModelFileError: an architecture that has no rules here.
    """
    layout = LAYOUTS.get(keys.architecture)
    if layout is None:
        raise ModelFileError(
            f"kvchat has no tensor table for the architecture {keys.architecture!r}: "
            "plan with the model's own GGUF file"
        )
    return tuple(layout.tensors(keys))
