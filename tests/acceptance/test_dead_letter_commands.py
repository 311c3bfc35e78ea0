"""`dlq` and `inbox close` as they are typed: many dead letters at once, deleted ones, messages given up."""

import re
from collections import Counter
from uuid import UUID

import pytest

from tests.support.handlers import answer, handler_server
from tests.support.jetstream import stored_messages
from tests.support.operators import WHY, World
from tests.support.rows import add_message


@pytest.fixture
async def world(world: World) -> World:
    await world.streams()
    return world


async def dead(world: World, count: int) -> list[UUID]:
    """Make so many dead letters, each with its row."""
    messages = [await add_message(world.pool, dead=True) for _ in range(count)]
    for message in messages:
        await world.dead_letter(message)
    return messages


async def outcomes(world: World, action: str) -> Counter[tuple[str, int]]:
    """Count the audit's records by outcome and number of changes."""
    records = (await world.run("audit", "--action", action, "--json")).json
    return Counter((record["outcome"], record["affected"]) for record in records)


async def left(world: World) -> int:
    return len(await stored_messages(world.connection, f"{world.name.upper()}_DLQ"))


async def test_dead_letters_are_found_by_each_part_of_a_filter(world: World) -> None:
    await dead(world, 3)

    later = (await world.run("dlq", "show", "2", "--json")).json["stored_at"]
    for options, expected in (
        ((), [1, 2, 3]),
        (("--dlq-reason", "REJECTED"), [1, 2, 3]),
        (("--type", "b", "--subject", "a.event.b.v1", "--error", "ANSWERED 422"), [1, 2, 3]),
        (("--type", "other"), []),
        (("--subject", "a.event.b"), []),
        (("--consumer", "other"), []),
        (("--after", "1", "--limit", "1"), [2]),
        (("--since", "1h"), [1, 2, 3]),
        (("--until", "1h"), []),
        (("--since", "2100-01-01"), []),
        (("--since", later), [2, 3]),
        (("--until", later), [1]),
    ):
        found = (await world.run("dlq", "list", "--json", *options)).json
        assert [entry["seq"] for entry in found] == expected, options
    counted = (await world.run("dlq", "summary", "--json")).json
    groups = {(group["kind"], group["name"], group["count"]) for group in counted["groups"]}
    assert groups >= {("reason", "REJECTED", 3), ("detail", "the handler answered 422", 3)}


@pytest.mark.fault("S18")
async def test_a_redrive_of_many_is_counted_first_and_continues_after_an_interruption(world: World) -> None:
    messages = await dead(world, 12)
    chosen = ("dlq", "redrive", "--dlq-reason", "REJECTED", *WHY)
    async with handler_server() as server:
        url = {"SEA_MQ_HANDLER_URL": server.url}
        assert (await world.run("dlq", "redrive", *WHY, **url)).code == 2
        assert "12 would be" in (await world.run(*chosen, "--dry-run", **url)).out
        unasked = await world.run(*chosen, **url)
        assert (unasked.code, "--yes" in unasked.err) == (2, True)
        assert (await world.run(*chosen, "--yes", "--cap", "11", **url)).code == 2
        assert (len(server.calls), await left(world)) == (0, 12)
        server.script[str(messages[1])] = answer(422)
        most = await world.run(*chosen, "--yes", **url)
        assert (most.code, "done 11 of 12, 1 failed and stay" in most.out) == (1, True)
        assert "2: failed" in most.out
        assert await outcomes(world, "redrive") == {("done", 1): 11, ("refused", 0): 1}
        server.script.clear()
        assert (await world.run(*chosen, **url)).out == "2: done: processed, the handler answered 200\n"
    assert (await left(world), await world.state_of(messages[1])) == (0, "PROCESSED")


async def test_a_redrive_that_fails_again_and_again_stops(world: World) -> None:
    await dead(world, 12)
    async with handler_server(answer(500)) as server:
        url = {"SEA_MQ_HANDLER_URL": server.url}
        stopped = await world.run("dlq", "redrive", "--all", "--yes", *WHY, **url)
        assert (stopped.code, len(server.calls)) == (1, 10)
    assert "10 failures in a row" in stopped.err
    assert await left(world) == 12


async def test_dead_letters_that_can_never_be_handled_do_not_stop_a_redrive_and_can_be_purged_as_it_prints(
    world: World,
) -> None:
    for _ in range(11):
        await world.dead_letter(await add_message(world.pool, dead=True), b"no JSON")
    messages = await dead(world, 2)
    async with handler_server() as server:
        server.script[str(messages[0])] = answer(422)
        url = {"SEA_MQ_HANDLER_URL": server.url}
        ended = await world.run("dlq", "redrive", "--type", "b", "--yes", *WHY, **url)
    assert (ended.code, len(server.calls), await left(world)) == (1, 2, 12)
    assert "\ndone 1 of 13, 1 failed and stay, 11 can never be handled and stay\n" in f"\n{ended.out}"
    assert ended.out.count("failed:") == 1
    [purge] = re.findall(r'`python -m sea_mq_worker (.+?) --reason "\.\.\."`', ended.out)
    await world.run(*purge.split(), "--yes", *WHY)
    assert await left(world) == 1
    one = await world.dead_letter(await add_message(world.pool, dead=True), b"no JSON")
    again = await world.run("dlq", "redrive", str(one), "--json", *WHY, **url)
    assert (again.code, [(entry["done"], entry["skipped"]) for entry in again.json]) == (1, [(False, True)])


async def test_a_redrive_that_an_outage_ends_prints_its_outcomes(world: World) -> None:
    _, second = await dead(world, 2)
    await world.pool.execute(
        "CREATE FUNCTION shut_down() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE EXCEPTION 'shut down' USING ERRCODE = '57P01'; END $$;"
        " CREATE TRIGGER shut_down BEFORE UPDATE ON inbox_messages"
        f" FOR EACH ROW WHEN (new.message_id = '{second}') EXECUTE FUNCTION shut_down()"
    )
    async with handler_server() as server:
        url = {"SEA_MQ_HANDLER_URL": server.url}
        ended = await world.run("dlq", "redrive", "1", "2", "--json", *WHY, **url)
    assert (ended.code, [(one["seq"], one["done"]) for one in ended.json]) == (1, [(1, True)])
    assert "1 of 2 are done" in ended.err


@pytest.mark.fault("S18")
async def test_a_purge_deletes_dead_letters_and_gives_their_messages_up(world: World) -> None:
    messages = await dead(world, 12)
    opened = await add_message(world.pool)
    kept = await world.dead_letter(opened)
    assert "13 would be deleted" in (await world.run("dlq", "purge", "--all", *WHY, "--dry-run")).out
    assert (await world.run("dlq", "purge", "--all", *WHY)).code == 2
    assert (await world.run("dlq", "purge", "--error", "", "--yes", *WHY)).code == 2
    assert await left(world) == 13
    missing = await world.run("dlq", "purge", "1", "99", *WHY, "--dry-run")
    assert (missing.code, "no message 99" in missing.err) == (1, True)
    assert "1 would be deleted" in (await world.run("dlq", "purge", "1", *WHY, "--dry-run")).out
    one = await world.run("dlq", "purge", "1", *WHY)
    assert (one.code, one.out) == (0, "1: done: deleted\n")
    rest = await world.run("dlq", "purge", "--all", "--yes", *WHY)
    assert (rest.code, f"{kept}: failed: its message is open" in rest.out) == (1, True)
    assert await left(world) == 1
    shown = (await world.run("inbox", "show", str(messages[0]), "--json")).json
    assert (shown["state"], shown["dead_letter_reason"]) == ("DEAD_LETTERED", "CLOSED")
    assert shown["last_error"] == "purged by ann: the handler was broken; REJECTED: 422"
    assert await outcomes(world, "purge") == {("done", 1): 1, ("done", 11): 1}
    last = await world.run("dlq", "purge", str(kept), *WHY)
    assert (last.code, (await outcomes(world, "purge"))["refused", 0]) == (1, 1)
