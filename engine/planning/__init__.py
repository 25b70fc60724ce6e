"""What to choose: plans, knobs, what-ifs and the search, for screen, commands and scripts."""
