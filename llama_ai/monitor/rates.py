"""Speeds from counters: differences over a short window. Pure; times are passed in."""

from __future__ import annotations

from collections import deque


class Rate:
    """How fast a counter grows, over the last ``window_s`` seconds.

    A difference over a window is exact over that window, so the rate needs no tuning; it settles at
    zero one window after the counter stops. A counter that falls has started anew.
    """

    def __init__(self, window_s: float = 3.0) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, float]] = deque()

    def update(self, now_s: float, count: float) -> float | None:
        """Add a reading and return the rate per second; ``None`` until there are two."""
        points = self._points
        if points and (count < points[-1][1] or now_s <= points[-1][0]):
            points.clear()
        points.append((now_s, count))
        # The oldest point stays while it is needed to span the window.
        while len(points) > 2 and points[1][0] <= now_s - self._window_s:
            points.popleft()
        if len(points) < 2:
            return None
        (start_s, first), (end_s, last) = points[0], points[-1]
        return (last - first) / (end_s - start_s)


class Rising:
    """A counter put together from parts that are not read at the same instant: it never falls.

    Between two reads a request can move from one part to the other and be in neither for a moment.
    """

    def __init__(self) -> None:
        self._highest = 0.0

    def update(self, count: float) -> float:
        """The highest value so far."""
        self._highest = max(self._highest, count)
        return self._highest
