"""Comparisons of committed events with what a stream holds."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any


def out_of_order(events: Iterable[tuple[str, str | None]], first_seq: Mapping[str, int]) -> list[str]:
    """Return the IDs of events whose first copy is stored after a later event of their key.

    Args:
        events: ID and key of each event, in the order of the commits.
        first_seq: sequence of an event's first copy, by ID.
    """
    last: Counter[str] = Counter()
    wrong = []
    for event_id, key in events:
        if key is None or event_id not in first_seq:
            continue
        if first_seq[event_id] < last[key]:
            wrong.append(event_id)
        last[key] = max(last[key], first_seq[event_id])
    return wrong


def exact(text: str | bytes) -> Any:
    """Read JSON with every digit of a number; equal numbers are equal however they are written."""
    return json.loads(text, parse_float=Decimal)
