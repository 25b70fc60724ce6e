"""What a configuration of a model costs on a machine."""
