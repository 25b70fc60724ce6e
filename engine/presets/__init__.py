"""What was chosen: rules in presets, and their way to numbers and to other programs."""
