"""What was computed and is kept: a prefix tree over committed tokens, and tiers of states."""
