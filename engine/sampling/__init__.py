"""Logits to tokens: the one place where a distribution is made."""
