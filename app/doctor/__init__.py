"""Checks of the machine that `kvchat doctor` runs; each gives what is, and what to change."""
