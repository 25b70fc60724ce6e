"""The generation loop: prefill, draft, verify, accept, crop; it yields events."""
