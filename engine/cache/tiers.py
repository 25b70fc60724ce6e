"""Warm and cold: the tiers of kept states of one model and its settings."""

from engine.cache.cold_tier import ColdTier

__all__ = ["ColdTier"]
