"""Kept states on disk: files that say themselves what they are, and an index that spares a scan."""
