"""Google's Gemma: norms before and after every block, the output tied to the embedding."""

from engine.model.layouts import blocks as b
from engine.model.layouts.family import Family, same_in_every_layer

GEMMA2 = b.ATTENTION + b.POST_ATTENTION_NORM + b.FFN_NORM + b.GATED_FFN + b.POST_FFN_NORM

GEMMA = {
    "gemma": Family(same_in_every_layer(b.ATTENTION, b.FFN_NORM, b.GATED_FFN)),
    "gemma2": Family(same_in_every_layer(GEMMA2)),
    "gemma3": Family(same_in_every_layer(GEMMA2, b.QK_NORM)),
}
