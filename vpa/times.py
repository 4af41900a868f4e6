"""RFC 3339 text ↔ nanoseconds since the Unix epoch; Go's zero time (year 1) is "never"."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

from vpa.histograms import NEVER

SECOND = 10**9

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_LEAST, _MOST = -(2**62), 2**62  # 1823 to 2116: inside an int64, and so are differences


def parse(text: str) -> int:
    """Nanoseconds since the epoch; times outside 1823…2116 are moved to that range's ends.

    A ``ValueError`` says that the text is no RFC 3339 time.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text}" is not an RFC 3339 time')
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise ValueError(f'"{text}" is not an RFC 3339 time: {error}') from None
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f'"{text}" is not an RFC 3339 time')
    seconds = days * 86400 + hour * 3600 + minute * 60 + second
    if match[8]:
        offset = int(match[9]) * 3600 + int(match[10]) * 60
        seconds -= offset if match[8] == "+" else -offset
    fraction = int((match[7] or "0")[:9].ljust(9, "0"))
    if (year, month, day, hour, minute, second, fraction) == (1, 1, 1, 0, 0, 0, 0) and not match[8]:
        return NEVER
    return max(_LEAST, min(_MOST, seconds * SECOND + fraction))


def text(time: int) -> str:
    """RFC 3339 in UTC with whole seconds, as API objects carry it."""
    return datetime.fromtimestamp(time // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_datetime(moment: datetime) -> int:
    """Exact nanoseconds of an aware datetime."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * SECOND + since.microseconds * 1000


def to_datetime(time: int) -> datetime:
    """The aware UTC datetime, to the microsecond."""
    return datetime.fromtimestamp(time // SECOND, UTC).replace(microsecond=time % SECOND // 1000)
