"""What the chat is, without a screen: counters, transcript entries, and the controller."""
