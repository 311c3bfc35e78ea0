"""Format figures with units, and untrusted text."""

from datetime import UTC, datetime

_DURATIONS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_STEPS = ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
_FEW = 10
_MANY = 100


def number(value: int) -> str:
    """Write 12345 as 12,345."""
    return f"{value:,}"


def counted(value: int, one: str) -> str:
    """Write 1 as `1 event`, 2 as `2 events`."""
    return f"{value:,} {one}" if value == 1 else f"{value:,} {one}s"


def share(part: int, whole: int) -> str:
    """Write a part as a percentage; only an empty part is 0 %."""
    if not whole or not part:
        return "0 %"
    percent = 100 * part / whole
    if percent < 0.1:  # noqa: PLR2004 - what is shown has one decimal
        return "< 0.1 %"
    return f"{percent:.1f} %" if percent < _FEW else f"{percent:.0f} %"


def duration(seconds: float) -> str:
    """Write seconds in the largest unit that gives at least 1."""
    for unit, name in _DURATIONS:
        if seconds >= unit:
            return f"{_short(seconds / unit)} {name}"
    return f"{_short(seconds * 1000)} ms"


def size(count: int) -> str:
    """Write bytes in kB, MB and so on, in steps of 1000."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:  # noqa: PLR2004 - the step from unit to unit
            return f"{value:.0f} B" if unit == "B" else f"{_short(value)} {unit}"
        value /= 1000
    return f"{_short(value)} TB"


def moment(at: datetime) -> str:
    """Write a time in UTC, without the zone."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def step(seconds: int) -> str:
    """Write the length of a bin, as in `events per 5 minutes`."""
    length, name = next((length, name) for length, name in _STEPS if seconds % length == 0)
    times = seconds // length
    return name if times == 1 else f"{times} {name}s"


def printable(text: str) -> str:
    """Escape control characters and characters that change the reading direction."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _short(value: float) -> str:
    return f"{value:.1f}" if value < _MANY and value != int(value) else f"{value:,.0f}"
