"""What a reply may be: a JSON schema or a grammar, read, checked and made into masks of tokens."""
