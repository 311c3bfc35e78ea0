"""The kit's audit finds events that are lost, repeated, out of order or altered."""

import json
from collections.abc import Iterable

from kit.audit import at, audit
from kit.ledger import Event
from kit.streams import Message


def event(name: str, *, key: str | None = None, committed: bool = True) -> Event:
    body = json.dumps({"event": name})
    return Event(id=name, key=key, body=body, fault="x", committed=committed)


def stored(*names: str) -> list[Message]:
    return [
        Message(seq=seq, headers={}, body=json.dumps({"event": name}).encode())
        for seq, name in enumerate(names, 1)
    ]


def found(events: list[Event], messages: Iterable[Message], **given: frozenset[str]) -> dict[str, list[str]]:
    """Return the non-empty findings, with the IDs."""
    arguments = {"unfinished": frozenset[str](), "refused": frozenset[str](), **given}
    finding = audit(events, messages, pointer="", **arguments)["x"]
    kinds = ("lost", "given_up", "stuck", "copies", "disordered", "altered", "phantoms")
    return {kind: getattr(finding, kind) for kind in kinds if getattr(finding, kind)}


def test_events_stored_once_and_in_order_pass_the_audit() -> None:
    events = [event("a", key="k"), event("b", key="k"), event("c"), event("d", committed=False)]
    assert found(events, stored("c", "a", "b")) == {}


def test_a_missing_event_is_lost_given_up_or_stuck_by_its_row() -> None:
    events = [event("a"), event("b"), event("c")]
    wrong = found(events, [], unfinished=frozenset({"b"}), refused=frozenset({"c"}))
    assert wrong == {"lost": ["a"], "stuck": ["b"], "given_up": ["c"]}


def test_a_stored_event_of_a_rolled_back_transaction_is_a_phantom() -> None:
    assert found([event("a", committed=False)], stored("a")) == {"phantoms": ["a"]}


def test_each_further_copy_counts() -> None:
    assert found([event("a")], stored("a", "a", "a")) == {"copies": ["a", "a"]}


def test_an_event_after_a_later_one_of_its_key_is_out_of_order() -> None:
    events = [event("a", key="k"), event("b", key="k"), event("c", key="other")]
    assert found(events, stored("c", "b", "a")) == {"disordered": ["b"]}


def test_a_changed_digit_is_found() -> None:
    right = Event(
        id="a", key=None, body='{"event":"a","n":0.10000000000000000001}', fault="x", committed=True
    )
    message = Message(seq=1, headers={}, body=b'{"event":"a","n":0.1}')
    assert found([right], [message]) == {"altered": ["a"]}


def test_an_event_is_found_inside_an_envelope_even_as_text() -> None:
    assert at(b'{"data":{"payload":"{\\"event\\":\\"a\\"}"}}', "/data/payload") == {"event": "a"}


def test_an_event_with_an_unreadable_body_is_found_by_its_message_id() -> None:
    message = Message(seq=1, headers={"Nats-Msg-Id": "a"}, body=b"?")
    assert found([event("a")], [message]) == {"altered": ["a"]}
