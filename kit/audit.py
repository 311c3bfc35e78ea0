"""Compares what was committed with what the stream holds."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from kit.ledger import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A message of the stream."""

    seq: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Finding:
    """What is wrong with the events of one fault, by id.

    Attributes:
        lost: committed, no longer to be sent by the table, and not in the stream.
        given_up: the relay has refused them.
        stuck: still to be sent.
        copies: in the stream more than once.
        disordered: in the stream after a later event of their key.
        altered: another body than was committed.
        phantoms: in the stream, and rolled back.
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
    stored: Iterable[Stored],
    *,
    pointer: str,
    unfinished: Collection[str] | None,
    refused: Collection[str],
) -> dict[str, Finding]:
    """Judge every event; findings are by fault, in the order of the faults.

    Args:
        events: all that were inserted.
        stored: all that the stream holds, in its order.
        pointer: where the event is in a message's body.
        unfinished: ids that the table calls still to be sent; None where that cannot be told.
        refused: ids that the table calls given up.
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
            finding.altered += [event.id] * any(content != _value(event.body) for _, content in found)
        elif not event.poison:
            _missing(finding, event.id, unfinished, refused)
    for event in _disordered(
        events, {event_id: found[0][0] for event_id, found in messages.items() if found}
    ):
        findings[event.fault].disordered.append(event.id)
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


def _disordered(events: Sequence[Event], first_seq: Mapping[str, int]) -> list[Event]:
    last: Counter[str] = Counter()
    wrong = []
    for event in events:
        if event.key is None or not event.committed or event.id not in first_seq:
            continue
        if first_seq[event.id] < last[event.key]:
            wrong.append(event)
        last[event.key] = max(last[event.key], first_seq[event.id])
    return wrong


def identity(content: Any, headers: Mapping[str, str]) -> str:
    """Return the event's id: the body's own, or the message's where the body is not to be recognised."""
    if isinstance(content, dict) and isinstance(content.get("event"), str):
        return str(content["event"])
    return headers.get("Nats-Msg-Id", "")


def at(body: bytes, pointer: str) -> Any:
    """Return what a JSON pointer names in a body, JSON in a string included; None where it names nothing."""
    try:
        content = _value(body)
        for token in pointer.split("/")[1:]:
            content = content[int(token)] if isinstance(content, list) else content[token]
        return _value(content) if isinstance(content, str) else content
    except (ValueError, LookupError, TypeError):
        return None


def _value(text: str | bytes) -> Any:
    """Read JSON with every digit of a number."""
    return json.loads(text, parse_float=Decimal)
