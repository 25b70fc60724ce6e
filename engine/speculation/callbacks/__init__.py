"""Speculative decoding around two functions of the caller, without a backend."""
