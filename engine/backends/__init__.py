"""Who computes: the promise (`base`) and the programs that keep it."""

TORCH_MISSING = (
    "the torch backend needs PyTorch, which is not installed ({reason}): install it with "
    "`pip install 'kvchat[torch]'` (from a checkout: `.venv/bin/python -m pip install -e "
    "'.[torch]'`), or use the llama.cpp backend"
)
"""What to say where torch or gguf cannot be imported."""
