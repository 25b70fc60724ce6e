"""Chats in SQLite: a tree of messages each, saved while a reply streams."""
