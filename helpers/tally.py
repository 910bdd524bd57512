"""A count of what is done with the time that is left, from the pace so far."""

from dataclasses import dataclass, field


@dataclass
class Tally:
    """Where the executions of one stage stand."""

    total: int
    done: int = 0
    running: int = 0
    failed: int = 0
    retried: int = 0
    seconds: list[float] = field(default_factory=list)  # measured durations of what is done

    @property
    def waiting(self) -> int:
        """Count what has not been started."""
        return self.total - self.done - self.running - self.failed

    def seconds_left(self, slots: int) -> float | None:
        """Estimate the time to the end from the mean of the measured durations; None before the first one.

        What runs counts as half done. With n executions left on ``slots`` places, ceil(n / slots) rounds are to come.
        """
        left = self.waiting + self.running / 2
        if not left:
            return 0.0
        return sum(self.seconds) / len(self.seconds) * left / max(1, min(slots, self.waiting + self.running)) if self.seconds else None


def duration(seconds: float | None) -> str:
    """Write a time span for a reader: 4 s, 12 min, 3 h 20 min; unknown is a question mark."""
    if seconds is None:
        return "?"
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
