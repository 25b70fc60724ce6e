"""Speculation in kvchat and in other programs: same model, threads, token ids and build."""
