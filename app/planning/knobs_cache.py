"""Knobs of the cache and of what is computed at once."""

from dataclasses import replace

from app import format as fmt
from app.planning.knob import Facts, Knob, choice, with_configuration
from app.planning.plan import Setup
from app.planning.values import BATCHES, CONTEXTS, KnobError, parse_count, step_among
from engine.configuration import Configuration, FlashAttention, KVTypeName
from engine.memory.fit import with_n_ctx
from engine.memory.kv_cache import KV_TYPES, is_quantized

FLASH: tuple[FlashAttention, ...] = ("auto", "on", "off")
MAX_CONTEXT, MAX_BATCH = 16 * 1024**2, 65536


def put_context(setup: Setup, n_ctx: int) -> Setup:
    """Change the context, and that of a draft model with it."""
    return with_configuration(setup, with_n_ctx(setup.configuration, n_ctx))


def _turn_context(setup: Setup, facts: Facts, step: int) -> Setup:
    stops = (*CONTEXTS, facts.model.architecture.n_ctx_train)
    return put_context(setup, step_among(stops, setup.configuration.n_ctx, step))


def _put_batch(setup: Setup, n_batch: int) -> Setup:
    """Change the batch; the micro batch is never larger."""
    now = setup.configuration
    changed = replace(now, n_batch=n_batch, n_ubatch=min(now.n_ubatch, n_batch))
    return with_configuration(setup, changed)


def _put_ubatch(setup: Setup, n_ubatch: int) -> Setup:
    return with_configuration(setup, replace(setup.configuration, n_ubatch=n_ubatch))


def _turn_ubatch(setup: Setup, _: Facts, step: int) -> Setup:
    now = setup.configuration
    stops = [n for n in (*BATCHES, now.n_batch) if n <= now.n_batch]
    return _put_ubatch(setup, step_among(stops, now.n_ubatch, step))


def _read_ubatch(setup: Setup, text: str) -> Setup:
    n_ubatch = parse_count(text, low=1, high=MAX_BATCH)
    if n_ubatch > setup.configuration.n_batch:
        raise KnobError(
            f"{n_ubatch:,} is more than the batch of {setup.configuration.n_batch:,}: raise that "
            "first"
        )
    return _put_ubatch(setup, n_ubatch)


def _no_window(setup: Setup, facts: Facts) -> str:
    del setup
    layers = facts.model.architecture.layers.values()
    return (
        "" if any(layer.window is not None for layer in layers) else "no layer of this model slides"
    )


def settled(setup: Setup, facts: Facts) -> Setup:
    """Give the values the type of the keys where a model keeps both in one tensor."""
    now = setup.configuration
    if not facts.model.architecture.needs_one_type or now.type_k == now.type_v:
        return setup
    return with_configuration(setup, replace(now, type_v=now.type_k))


def _one_tensor(setup: Setup, facts: Facts) -> str:
    del setup
    is_one = facts.model.architecture.needs_one_type
    return "keys and values are one tensor: K type says both" if is_one else ""


def _with_values(configuration: Configuration, name: KVTypeName) -> Configuration:
    """Give the values a type; packed ones take flash attention along, which they need."""
    flash = configuration.flash_attention
    needs_flash = flash == "off" and is_quantized(name)
    return replace(configuration, type_v=name, flash_attention="auto" if needs_flash else flash)


CACHE_KNOBS: tuple[Knob, ...] = (
    Knob(
        "n_ctx", "context", "Tokens of context, of all slots together. Type 8192 or 8k.",
        lambda setup: fmt.count(setup.configuration.n_ctx),
        _turn_context,
        lambda setup, text: put_context(setup, parse_count(text, low=1, high=MAX_CONTEXT)),
    ),
    choice(
        "type_k", "K type", "Type of the cached keys: fewer bits, less memory, less exact.",
        tuple(KV_TYPES),
        lambda setup: setup.configuration.type_k,
        lambda setup, name: with_configuration(
            setup, replace(setup.configuration, type_k=name)
        ),
    ),
    choice(
        "type_v", "V type", "Type of the cached values. Packed types need flash attention.",
        tuple(KV_TYPES),
        lambda setup: setup.configuration.type_v,
        lambda setup, name: with_configuration(setup, _with_values(setup.configuration, name)),
        idle=_one_tensor,
    ),
    choice(
        "flash_attention", "flash attn", "Attention without the large table of scores.",
        FLASH,
        lambda setup: setup.configuration.flash_attention,
        lambda setup, value: with_configuration(
            setup, replace(setup.configuration, flash_attention=value)
        ),
    ),
    choice(
        "swa_full", "SWA cache", "Whether layers with a sliding window keep every token.",
        ("window", "full"),
        lambda setup: "full" if setup.configuration.swa_full else "window",
        lambda setup, value: with_configuration(
            setup, replace(setup.configuration, swa_full=value == "full")
        ),
        idle=_no_window,
    ),
    Knob(
        "n_batch", "batch", "Tokens handed over at a time.",
        lambda setup: fmt.count(setup.configuration.n_batch),
        lambda setup, _, step: _put_batch(
            setup, step_among(BATCHES, setup.configuration.n_batch, step)
        ),
        lambda setup, text: _put_batch(setup, parse_count(text, low=1, high=MAX_BATCH)),
    ),
    Knob(
        "n_ubatch", "ubatch", "Tokens computed at once: the compute buffer grows with them.",
        lambda setup: fmt.count(setup.configuration.n_ubatch), _turn_ubatch, _read_ubatch,
    ),
)  # fmt: skip
