"""Chats as files: Markdown to read, JSONL that loses nothing, and both read back."""
