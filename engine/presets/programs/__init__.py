"""Other programs: a configuration leaves for them as their settings, and theirs become a preset."""
