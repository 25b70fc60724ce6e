"""Memory that a configuration of a model needs on a machine."""
