"""The engine of kvchat: what a model is, what it costs, and how it answers. No user interface."""
