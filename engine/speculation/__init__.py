"""Speculative decoding: predictors, draft length and verification."""
