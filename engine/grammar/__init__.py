"""Grammars: JSON schemas and grammars are validated and compiled to token masks."""
