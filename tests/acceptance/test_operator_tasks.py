"""Each task of docs/how-to/operations.md, done with the commands written there, on a system that needs it."""

import re
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from sea_mq_worker.nats.connection import api
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import begin
from tests.support.checkups import OF_TEST_SERVERS, Patient
from tests.support.documents import commands
from tests.support.operators import Answer, World
from tests.support.programs import own_programs
from tests.support.rows import add_event, add_message

DAY = timedelta(days=1)


@pytest.fixture
def world(system: Patient) -> World:
    return World(env=system.environment, pool=system.pool, connection=system.broker, name=system.name)


def tasks() -> dict[str, list[str]]:
    """Return the commands of each task by its title, in the document's order."""
    found: dict[str, list[str]] = {}
    for command in commands("docs/how-to/operations.md"):
        found.setdefault(command.heading, []).append(command.text)
    numbers, titles = zip(*(heading.split(". ", 1) for heading in found), strict=True)
    assert [int(number) for number in numbers] == list(range(1, len(found) + 1))
    return dict(zip(titles, found.values(), strict=True))


async def done(world: World, title: str, **named: object) -> list[Answer]:
    """Do a task as it is written, with ``named`` words in place of the commands' own; return the answers."""
    lines = [words for line in tasks()[title] for _, words in own_programs(line)]
    return [await world.run(*(str(named.get(word, word)) for word in words)) for words in lines]


async def states(world: World) -> dict[str, int]:
    rows = await world.pool.fetch("SELECT state, count(*) AS events FROM outbox_events GROUP BY state")
    return {row["state"]: row["events"] for row in rows}


async def refused(world: World, messages: int = 1) -> dict[int, UUID]:
    """Dead-letter messages; return their ids by the sequence of the dead letter."""
    ids = [await add_message(world.pool, dead=True) for _ in range(messages)]
    return {await world.dead_letter(message): message for message in ids}


def test_there_are_twenty_two_tasks_of_two_commands_at_most() -> None:
    assert len(tasks()) == 22
    assert {title: lines for title, lines in tasks().items() if len(lines) not in {1, 2}} == {}


def test_every_task_is_done_by_a_test() -> None:
    named = re.findall(r'done\(\s*world, "(.+?)"', Path(__file__).read_text())
    assert sorted(set(named)) == sorted(tasks())


# --- looking


async def test_is_anything_wrong(world: World, system: Patient) -> None:
    await system.sql("DROP INDEX idx_outbox_due")
    [found] = await done(world, "Is anything wrong?")
    assert found.code == 1
    assert "idx_outbox_due" in found.out


async def test_why_is_the_queue_growing(world: World) -> None:
    for error in ("subject is taken", "subject is taken", None):
        await add_event(world.pool, error=error, ordering_key="order-42")
    depth, summary = await done(world, "Why is the queue growing?")
    assert re.search(r"outbox\s+3\b", depth.out)
    assert [said in summary.out for said in ("order.created", "order-42", "subject is taken")] == [True] * 3


async def test_where_is_my_event(world: World) -> None:
    event = await add_event(world.pool, "DEAD", error="too large")
    [reported] = await done(world, "Where is my event?", EVENT=str(event)[:8])
    assert reported.out.splitlines()[:2] == [str(event), "  it is DEAD and will not be published: too large"]
    assert f"-> python -m sea_mq_worker outbox replay {event}" in reported.out


async def test_what_became_of_the_events_of_one_request(world: World) -> None:
    request = uuid.uuid4()
    caused = [
        await add_event(world.pool, state, correlation_id=request) for state in ("PUBLISHED", "PENDING")
    ]
    other = await add_event(world.pool)
    [listed] = await done(world, "What became of the events of one request?", CORRELATION=request)
    assert [str(event) in listed.out for event in (*caused, other)] == [True, True, False]


async def test_which_events_will_not_be_published_and_why(world: World) -> None:
    dead = await add_event(world.pool, "DEAD", error="the subject has a space")
    alive = await add_event(world.pool)
    [listed] = await done(world, "Which events will not be published, and why?")
    assert (str(dead) in listed.out, str(alive) in listed.out) == (True, False)
    assert "the subject has a space" in listed.out


async def test_what_is_in_an_event(world: World) -> None:
    [shown] = await done(
        world, "Which payload and headers does an event have?", EVENT=await add_event(world.pool)
    )
    assert '{"total": 1.00}' in shown.out


async def test_what_did_the_handler_refuse(world: World) -> None:
    [(seq, message)] = (await refused(world)).items()
    listed, shown = await done(world, "What did the handler refuse?", SEQ=seq)
    assert str(message) in listed.out
    assert '{"vibe": 1.00}' in shown.out


async def test_did_the_handler_ever_get_a_message(world: World) -> None:
    [shown] = await done(
        world, "Did the handler ever get a message?", MESSAGE=await add_message(world.pool, processed=True)
    )
    assert ("PROCESSED" in shown.out, re.search(r"attempts\s+3\b", shown.out) is not None) == (True, True)


async def test_who_changed_something_last_night(world: World) -> None:
    event = str(await add_event(world.pool))
    await world.run("outbox", "mark-dead", event, "--reason", "sent twice", "--actor", "ann")
    [listed] = await done(world, "Who changed something last night?")
    assert [said in listed.out for said in ("ann", "mark_dead", "sent twice", event)] == [True] * 4


# --- sending again


async def test_publish_again_what_died_of_one_error(world: World) -> None:
    too_large = "2000265 bytes with headers are more than the server's max_payload of 1048576"
    for error in (too_large, too_large, "no subject"):
        await add_event(world.pool, "DEAD", error=error)
    counted, replayed = await done(world, "Publish again what died of one error")
    assert (counted.out, replayed.out) == ("2 would be replayed\n", "replayed 2 of 2\n")
    assert await states(world) == {"PENDING": 2, "DEAD": 1}


async def test_replay_yesterdays_events_of_one_type_and_key(world: World) -> None:
    yesterday = datetime.now(UTC) - 1.5 * DAY
    wanted = {"event_type": "order.updated", "ordering_key": "order-42", "created_at": yesterday}
    chosen = [await add_event(world.pool, "PUBLISHED", **wanted) for _ in range(2)]
    for other in (
        {"created_at": datetime.now(UTC)},
        {"event_type": "order.created"},
        {"ordering_key": "order-43"},
    ):
        await add_event(world.pool, "PUBLISHED", **wanted | other)
    [replayed] = await done(world, "Replay yesterday's events of one type and key")
    assert replayed.out == "replayed 2 of 2\n"
    waiting = await world.pool.fetch("SELECT id FROM outbox_events WHERE state = 'PENDING' ORDER BY seq")
    assert [row["id"] for row in waiting] == chosen


async def test_resume_an_interrupted_replay(world: World) -> None:
    """It was begun, and killed before it had put anything back."""
    dead = [await add_event(world.pool, "DEAD") for _ in range(3)]
    begun = await begin(world.pool, OutboxFilter(ids=tuple(dead)), actor="ann", reason="handler fixed")
    listed, resumed = await done(world, "Resume an interrupted replay", ACTION=begun.id)
    assert re.search(rf"^\s*{begun.id}\b.*ann", listed.out, re.MULTILINE)
    assert resumed.out == "replayed 3 of 3\n"
    assert await states(world) == {"PENDING": 3}


async def test_redrive_all_dead_letters_of_one_reason(world: World, system: Patient) -> None:
    messages = (await refused(world, 2)).values()
    counted, redriven = await done(world, "Redrive all dead letters of one reason, after a fix")
    assert (counted.code, "2" in counted.out, redriven.code) == (0, True, 0)
    assert {call.message_id for call in system.handler.calls} == {str(message) for message in messages}
    assert (await world.run("dlq", "list", "--json")).json == []


async def test_redrive_one_dead_letter(world: World, system: Patient) -> None:
    letters = await refused(world, 2)
    seq = min(letters)
    [redriven] = await done(world, "Redrive one dead letter", SEQ=seq)
    assert redriven.code == 0
    assert [call.message_id for call in system.handler.calls] == [str(letters[seq])]


# --- ending


async def test_keep_an_event_from_being_published(world: World) -> None:
    [marked] = await done(world, "Keep an event from being published", EVENT=await add_event(world.pool))
    assert (marked.code, await states(world)) == (0, {"DEAD": 1})


async def test_give_up_an_event_that_can_never_be_sent(world: World) -> None:
    await add_event(world.pool, "DEAD", error="INVALID_OUTBOX: event_type is blank")
    await add_event(world.pool, "DEAD", error="too large")
    counted, discarded = await done(world, "Give up an event that can never be sent")
    assert (counted.out, discarded.out) == ("1 would be deleted\n", "discarded 1 of 1\n")
    assert await states(world) == {"DEAD": 1}


async def test_throw_dead_letters_away(world: World) -> None:
    """What has just come stays: only those older than 30 days go."""
    await refused(world)
    counted, purged = await done(world, "Throw dead letters away")
    assert (counted.code, purged.code, purged.out) == (0, 0, "no dead letter matches\n")
    assert (await world.run("audit", "--json")).json == []
    assert len((await world.run("dlq", "list", "--json")).json) == 1


async def test_give_up_a_message_that_will_not_come_again(world: World) -> None:
    message = await add_message(world.pool, received_at=datetime.now(UTC) - 2 * DAY)
    listed, closed = await done(world, "Give up a message that will not come again", MESSAGE=message)
    assert (str(message) in listed.out, closed.code) == (True, 0)
    assert (await world.run("depth", "--json")).json["inbox"]["waiting"] == 0


async def test_make_room_in_the_database(world: World) -> None:
    old = await add_message(world.pool, received_at=datetime.now(UTC) - 40 * DAY, processed=True)
    young = await add_message(world.pool, processed=True)
    counted, pruned = await done(world, "Make room in the database")
    assert all(re.search(r"inbox: .*\b1\b", reported.out) for reported in (counted, pruned))
    assert (await world.run("inbox", "show", str(old))).code == 1
    assert await world.state_of(young) == "PROCESSED"


# --- changing


async def test_is_it_safe_to_upgrade(world: World) -> None:
    found, planned = await done(world, "Is it safe to upgrade?")
    slugs = {finding["slug"] for finding in (await world.run("doctor", "--json")).json}
    assert (found.code in {0, 1}, slugs <= OF_TEST_SERVERS) == (True, True)
    assert (planned.code, "side by side" in planned.out) == (0, True)


async def test_a_stream_was_changed_by_hand(world: World, system: Patient) -> None:
    stream = f"{system.name.upper()}_EVENTS"
    config = (await api(system.broker, f"STREAM.INFO.{stream}"))["config"]
    await api(system.broker, f"STREAM.UPDATE.{stream}", config | {"max_msgs": 10})
    checked, applied = await done(world, "A stream or consumer was changed by hand")
    assert (checked.code, "max_msgs" in checked.out + checked.err, applied.code) == (1, True, 0)
    assert (await world.run("streams", "check")).code == 0


async def test_end_the_slow_pace_of_an_event_type(world: World, system: Patient) -> None:
    messages = (await refused(world, 2)).values()
    resumed, redriven = await done(world, "End the slow pace of an event type", TYPE="b")
    assert (resumed.code, resumed.out) == (0, "b runs at full speed within seconds\n")
    assert redriven.code == 0
    assert {call.message_id for call in system.handler.calls} == {str(message) for message in messages}
    [action] = (await world.run("audit", "--action", "resume", "--json")).json
    assert (action["reason"], action["outcome"]) == ("handler fixed", "done")
