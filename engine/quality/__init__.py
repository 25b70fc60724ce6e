"""What a type of KV cache does to a model's text, measured on the user's own model and texts."""
