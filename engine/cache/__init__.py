"""Prefix cache: a radix tree over committed tokens, and sequence states in RAM and on disk."""
