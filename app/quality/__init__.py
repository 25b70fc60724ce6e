"""What a type of KV cache costs on a model and a text, from the options to table and page."""
