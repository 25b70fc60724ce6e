"""How much main memory the machine has left."""

import psutil


def available_bytes() -> int:
    """Give the bytes that programs can take before the machine swaps, as psutil estimates them."""
    return psutil.virtual_memory().available
