"""How far a transfer is, told at most twice a second; a transfer shorter than that says nothing.

Called by the S3 transfers from many threads. The events' step is `store`, since a transfer does not know whose it is.
"""

import threading
import time

from components.steps import report_progress

_INTERVAL_S = 0.5
_MEGABYTE = 1_000_000


class TransferProgress:
    """Counts bytes of one transfer and reports them as progress events."""

    def __init__(self, label: str, total_bytes: int) -> None:
        """Begin at zero.

        Args:
            label: what the events are about (`upload`, `download`); their step is `store`.
            total_bytes: bytes of the whole transfer.
        """
        self._label = label
        self._total = total_bytes
        self._done = 0
        self._reported = time.monotonic()
        self._started = self._reported
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count bytes that are through (negative: bytes that must be sent again)."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            is_last = self._done >= self._total and self._reported > self._started
            if now - self._reported < _INTERVAL_S and not is_last:
                return
            self._reported = now
            done, rate = self._done, self._done / max(now - self._started, 1e-9)
        report_progress(
            "store",
            round(done / _MEGABYTE),
            round(self._total / _MEGABYTE),
            unit=f"MB {self._label}",
            figures={"MB/s": round(rate / _MEGABYTE, 1)},
        )
