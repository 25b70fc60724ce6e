"""The chat without its screen: conversation, unsent text, counters and transcript entries."""
