"""Several addresses of one API: use the first that answers, come back to it when it answers again."""

from __future__ import annotations

from collections.abc import Sequence

from vpa.cluster.pacing import Clock, monotonic

FIRST_PAUSE = 2.0
LONGEST_PAUSE = 30.0


class _Endpoint:
    __slots__ = ("pause", "retry_at", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.pause = FIRST_PAUSE
        self.retry_at: float | None = None  # None: nothing is wrong with it


class Endpoints:
    """URLs in order of preference.

    One that failed is left alone for 2 s, then for twice as long each time up to 30 s; when the pause is
    over a single request tries it while the others go on using the next one.
    """

    def __init__(self, urls: Sequence[str], *, clock: Clock = monotonic) -> None:
        self._endpoints = [_Endpoint(url.rstrip("/")) for url in urls]
        self._by_url = {endpoint.url: endpoint for endpoint in self._endpoints}
        self._clock = clock

    def __len__(self) -> int:
        return len(self._endpoints)

    def pick(self) -> str:
        """The URL to use for the next request."""
        now = self._clock()
        for endpoint in self._endpoints:
            if endpoint.retry_at is None:
                return endpoint.url
            if endpoint.retry_at <= now:
                endpoint.retry_at = now + endpoint.pause  # ours alone is the try
                return endpoint.url
        return min(self._endpoints, key=lambda endpoint: endpoint.retry_at or 0.0).url

    def failed(self, url: str) -> None:
        """*url* did not answer."""
        endpoint = self._by_url[url]
        now = self._clock()
        if endpoint.retry_at is not None:
            endpoint.pause = min(LONGEST_PAUSE, endpoint.pause * 2)
        endpoint.retry_at = now + endpoint.pause

    def worked(self, url: str) -> None:
        """*url* answered."""
        endpoint = self._by_url[url]
        endpoint.retry_at = None
        endpoint.pause = FIRST_PAUSE
