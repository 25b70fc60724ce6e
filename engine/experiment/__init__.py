"""Is A faster than B on this machine, beyond the noise?"""
