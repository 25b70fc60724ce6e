"""Chats as files: Markdown to read, JSON lines that lose nothing, and both read back."""
