"""Effect of KV cache types on a model's output, measured on the user's model and texts."""
