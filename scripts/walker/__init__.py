"""A walker that uses the whole application at random, and random sessions on its engine."""

JOURNAL = "KVCHAT_WALK_JOURNAL"
"""Variable that names the file in which a watched kvchat writes what its store promised."""
AIM = "KVCHAT_WALK_AIM"
"""Variable that names the moment at which a process is killed; see `walker.kills.Aim`."""
