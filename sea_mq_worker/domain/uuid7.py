"""UUIDs of version 7 (RFC 9562), which begin with their creation time in milliseconds since 1970."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

_VERSION = 7
_BITS_BEHIND = 80
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MILLISECONDS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


def is_uuid7(highest: UUID) -> bool:
    """Return whether ids are in the order of their creation, judged by the highest id of a table.

    Nearly all ids of another version are higher than present ids of version 7.
    """
    return highest.version == _VERSION


def min_id_at(at: datetime) -> UUID:
    """Return a lower bound of all ids created at this time or later, to the millisecond."""
    return UUID(int=max(0, (at - _EPOCH) // _MILLISECOND) << _BITS_BEHIND)


def timestamp_of(id_: UUID) -> datetime:
    """Return the creation time that an id of version 7 claims; the sender chooses the id freely."""
    return _EPOCH + min(id_.int >> _BITS_BEHIND, _MILLISECONDS_MAX) * _MILLISECOND
