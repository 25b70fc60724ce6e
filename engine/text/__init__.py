"""Tokens to showable text."""
