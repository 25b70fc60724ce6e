"""A random walk through the whole application, and random sessions on its engine."""
