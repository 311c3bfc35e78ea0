"""Ids that tell when they were made: UUIDs of version 7 (RFC 9562) begin with the milliseconds since 1970."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

_VERSION = 7
_BITS_BEHIND = 80
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MILLISECONDS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


def is_uuid7(highest: UUID) -> bool:
    """Tell from the highest id of a table whether its ids are in the order in which they were made.

    Of ids of another version all but a few would be higher than those of version 7 are in this age.
    """
    return highest.version == _VERSION


def min_id_at(at: datetime) -> UUID:
    """Return what no id that is made at this time or later is below, to the millisecond."""
    return UUID(int=max(0, (at - _EPOCH) // _MILLISECOND) << _BITS_BEHIND)


def timestamp_of(id_: UUID) -> datetime:
    """Return when an id of version 7 was made, or says so: whoever sends a message chooses its id."""
    return _EPOCH + min(id_.int >> _BITS_BEHIND, _MILLISECONDS_MAX) * _MILLISECOND
