"""The engine as a process of its own: worker, messages, client, watchdog."""
