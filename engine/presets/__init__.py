"""Presets, and their export to and import from other programs."""
