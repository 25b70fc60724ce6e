"""A clock that stands still until a test moves it."""


class Clock:
    """Seconds, for whatever takes a function such as `time.monotonic`."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at
