"""The planner as an object, for scripts: see `docs/manager.md`."""

from engine.kv_cache_planner.planner import KVCachePlanner
from engine.kv_cache_planner.values import CacheEstimate, ConfigurationChanged

__all__ = ["CacheEstimate", "ConfigurationChanged", "KVCachePlanner"]
