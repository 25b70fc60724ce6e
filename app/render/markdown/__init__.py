"""Markdown of a reply as lines of styled text, block by block while it streams."""
