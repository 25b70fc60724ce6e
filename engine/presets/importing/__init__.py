"""Configurations in the words of other programs, read back into presets."""
