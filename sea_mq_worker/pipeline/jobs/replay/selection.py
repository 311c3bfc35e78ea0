"""The selection of events that an operator asks to replay."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sea_mq_worker.outbox.event import EventState

TERMINAL = (EventState.PUBLISHED, EventState.DEAD)
"""States from which an event can be replayed."""

TIMES = ("since", "until", "published_since", "published_until")
_LISTED_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection of events; None or an empty filter matches all events.

    Attributes:
        states: PUBLISHED or DEAD; archived events were PUBLISHED.
        since: only events created at this time or later.
        until: only events created before this time.
        published_since: only events last published at this time or later.
        published_until: only events last published before this time.
        words: the times as the operator wrote them, by name.
    """

    states: tuple[EventState, ...] = TERMINAL
    ids: tuple[UUID, ...] = ()
    event_types: tuple[str, ...] = ()
    ordering_keys: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    published_since: datetime | None = None
    published_until: datetime | None = None
    words: tuple[tuple[str, str], ...] = ()

    def audited(self, lake: str | None) -> str:
        """Return the selection for the audit as JSON; of many IDs, only their number and digest."""
        return json.dumps(self._fields(lake), default=str)

    def as_given(self, lake: str | None) -> str:
        """Return the selection as the operator wrote it, the same for the same command on another day."""
        return json.dumps(self._fields(lake) | dict(self.words), default=str)

    def with_times(self, audited: Mapping[str, Any]) -> "Selection":
        """Return the selection with an earlier run's times; an age such as 30d means another time today."""
        given = {name: datetime.fromisoformat(audited[name]) for name in TIMES if name in audited}
        return replace(self, **given)  # type: ignore[arg-type]

    def _fields(self, lake: str | None) -> dict[str, Any]:
        given = {name: value for name, value in asdict(self).items() if value and name != "words"}
        ids = sorted(map(str, self.ids))
        if len(ids) > _LISTED_MAX:
            given["ids"] = {"count": len(ids), "sha256": hashlib.sha256("".join(ids).encode()).hexdigest()}
        elif ids:
            given["ids"] = ids
        return {**given, "lake": lake}
