"""A transparent backend: a GGUF model as tensors with names and shapes."""
