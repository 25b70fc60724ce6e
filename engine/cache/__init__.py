"""Prefix cache: saved states as segments in RAM and on disk, found by their tokens."""
