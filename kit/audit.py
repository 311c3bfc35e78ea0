"""Compare the committed events with the stream's messages."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from kit.ledger import Event
from kit.streams import Message


@dataclass(slots=True)
class Finding:
    """IDs of the events of one fault that broke a guarantee.

    Attributes:
        events: number of events committed during the fault.
        lost: committed and not pending in the table, but not in the stream.
        given_up: refused by the relay.
        stuck: still pending in the table.
        copies: in the stream more than once.
        disordered: in the stream after a later event of their key.
        altered: their body differs from the committed one.
        phantoms: rolled back, but in the stream.
    """

    events: int = 0
    lost: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    phantoms: list[str] = field(default_factory=list)


def audit(
    events: Sequence[Event],
    stored: Iterable[Message],
    *,
    pointer: str,
    unfinished: Collection[str] | None,
    refused: Collection[str],
) -> dict[str, Finding]:
    """Judge every event; return findings by fault, in the order of the faults.

    Args:
        events: all inserted events.
        stored: all messages of the stream, in its order.
        pointer: JSON pointer to the event in a message's body.
        unfinished: IDs that are pending according to the table; None if the table cannot show it.
        refused: IDs that the relay gave up according to the table.
    """
    messages: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    for message in stored:
        content = at(message.body, pointer)
        messages[identity(content, message.headers)].append((message.seq, content))
    findings: dict[str, Finding] = {}
    for event in events:
        finding = findings.setdefault(event.fault, Finding())
        finding.events += event.committed
        found = messages[event.id]
        if not event.committed:
            finding.phantoms += [event.id] * bool(found)
        elif found:
            finding.copies += [event.id] * (len(found) - 1)
            finding.altered += [event.id] * any(content != exact(event.body) for _, content in found)
        elif not event.poison:
            _missing(finding, event.id, unfinished, refused)
    first_seq = {event_id: found[0][0] for event_id, found in messages.items() if found}
    committed = {event.id: event for event in events if event.committed}
    for event_id in out_of_order(((event.id, event.key) for event in committed.values()), first_seq):
        findings[committed[event_id].fault].disordered.append(event_id)
    return findings


def _missing(
    finding: Finding, event_id: str, unfinished: Collection[str] | None, refused: Collection[str]
) -> None:
    if event_id in refused:
        finding.given_up.append(event_id)
    elif unfinished is None or event_id in unfinished:
        finding.stuck.append(event_id)
    else:
        finding.lost.append(event_id)


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


def identity(content: Any, headers: Mapping[str, str]) -> str:
    """Return the event's ID from the body, or from the message's headers if the body cannot be read."""
    if isinstance(content, dict) and isinstance(content.get("event"), str):
        return str(content["event"])
    return headers.get("Nats-Msg-Id", "")


def at(body: bytes, pointer: str) -> Any:
    """Return what a JSON pointer names in a body, JSON in a string included; None where it names nothing."""
    try:
        content = exact(body)
        for token in pointer.split("/")[1:]:
            content = content[int(token)] if isinstance(content, list) else content[token]
        return exact(content) if isinstance(content, str) else content
    except (ValueError, LookupError, TypeError):
        return None


def exact(text: str | bytes) -> Any:
    """Read JSON with every digit of a number; equal numbers are equal however they are written."""
    return json.loads(text, parse_float=Decimal)
