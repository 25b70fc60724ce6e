"""Kills kvchat at bad moments and damages what it keeps; then looks for loss and wrong answers.

Run by `make torture`, or `PYTHONPATH=scripts .venv/bin/python -m torture --help`.
"""
