"""The sources of drafted tokens."""
