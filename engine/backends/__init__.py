"""Compute backends: their interface (`base`) and the implementations."""

TORCH_MISSING = (
    "the torch backend needs PyTorch, which is not installed ({reason}): install it with "
    "`pip install 'kvchat[torch]'` (from a checkout: `.venv/bin/python -m pip install -e "
    "'.[torch]'`), or use the llama.cpp backend"
)
"""Message if torch or gguf cannot be imported."""
