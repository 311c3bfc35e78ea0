"""The operator's commands as they are typed, against real servers: what they print and how they exit."""

import json
import re
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from sea_mq_worker.producer import uuid7
from tests.support.jetstream import create_consumer, create_stream, store
from tests.support.operators import WHY, Answer, World
from tests.support.partitions import id_of_day, partition_outbox, past_partition
from tests.support.rows import add_event, add_message
from tests.support.servers import PostgresAddress, scratch_database

# --- looking


async def test_outbox_list_leaves_published_out_unless_asked(world: World) -> None:
    pending, dead, published = [
        str(await add_event(world.pool, state, error=error))
        for state, error in (("PENDING", None), ("DEAD", "too large"), ("PUBLISHED", None))
    ]
    for options, expected in (
        ((), [dead, pending]),
        (("--state", "PUBLISHED", "--state", "PENDING"), [published, pending]),
        (("--error", "LARGE"), [dead]),
        (("--limit", "1"), [dead]),
        (("--until", "1h"), []),
        (("--since", "1h", "--type", "order.created"), [dead, pending]),
        (("--type", "other"), []),
        (("--key", "other"), []),
        (("--aggregate", "order/o-1", "--limit", "1"), [dead]),
        (("--aggregate", "order/o-2"), []),
        (("--correlation", str(uuid.uuid4())), []),
        (("--after", dead), [pending]),
    ):
        found = (await world.run("outbox", "list", "--json", *options)).json
        assert [event["id"] for event in found] == expected, options
    assert f"--after {dead}" in (await world.run("outbox", "list", "--limit", "1")).err
    gone = await world.run("outbox", "list", "--after", str(uuid.uuid4()))
    assert (gone.code, "without --after" in gone.err) == (1, True)
    assert (await world.run("outbox", "list", "--type", "other")).out == "no unpublished events\n"
    assert (await world.run("inbox", "list")).out == "no unprocessed messages\n"
    text = (await world.run("outbox", "list")).out
    assert ("PENDING" in text, "total" in text) == (True, False), "no payload"


async def test_a_list_reports_how_far_back_it_has_read(world: World) -> None:
    events = [await add_event(world.pool, "PUBLISHED", id=uuid7()) for _ in range(3)]
    messages = [await add_message(world.pool, message_id=uuid7(), processed=True) for _ in range(3)]
    for command, behind in (
        (["outbox", "list", "--state", "PUBLISHED", "--key", "nobody's"], events[1]),
        (["inbox", "list", "--state", "PROCESSED", "--consumer", "nobody"], messages[1]),
    ):
        some = await world.run(*command, "--read", "2")
        assert (some.code, some.out.split()[:3], f"continue with --after {behind}" in some.err) == (
            0, ["none", "of", "2"], True,
        )  # fmt: skip
        same = await world.run(*command, "--read", "2", "--json")
        assert (same.json, same.err) == ([], some.err)
        for every in (["--read", "0"], ["--after", str(behind)], []):
            rest = await world.run(*command, *every)
            assert (rest.code, rest.out.split()[0], rest.err) == (0, "no", ""), every


async def test_a_summary_shows_why_the_queue_grows(world: World) -> None:
    for n in range(3):
        await add_event(world.pool, "DEAD", error=f"too large: {n} MB", ordering_key="k")
    await add_event(world.pool, event_type="order.paid")
    await add_event(world.pool, "PUBLISHED")
    reported = (await world.run("outbox", "summary", "--groups", "1", "--json")).json
    assert [(group["kind"], group["name"], group["count"]) for group in reported["groups"]] == [
        ("error", "too large: # MB", 3),
        ("key", "k", 3),
        ("state", "DEAD", 3),
        ("state", "PENDING", 1),
        ("type", "order.created", 3),
    ]
    assert reported["read"] == 4
    await add_message(world.pool, dead=True)
    assert "REJECTED: #" in (await world.run("inbox", "summary")).out
    assert (await world.run("outbox", "summary", "--groups", "0")).code == 2


async def test_where_describes_an_event_as_json_and_what_is_nowhere(world: World) -> None:
    await world.streams()
    dead = await add_event(world.pool, "DEAD", error="too\n  -> large")
    found = (await world.run("where", str(dead), "--json")).json
    assert (found["found"]["event"]["state"], found["next_steps"][0].split()[3]) == ("DEAD", "outbox")
    assert r"too\n  -> large" in (await world.run("where", str(dead))).out
    nowhere = await world.run("where", str(uuid.uuid4()), "--since", "1h")
    assert (nowhere.code, "not here" in nowhere.out) == (1, True)
    assert (await world.run("where", "order-17")).code == 2


@pytest.mark.clause("QRY-050", "QRY-051")
async def test_depth_counts_both_sides_of_the_configured_context(world: World) -> None:
    await add_event(world.pool)
    await add_event(world.pool, "PUBLISHED")
    await add_message(world.pool)
    depth = (await world.run("depth", "--context", world.name, "--json")).json
    assert (depth["context"], depth["outbox"]["count"], depth["inbox"]["count"]) == (world.name, 1, 1)
    assert datetime.fromisoformat(depth["outbox"]["oldest_at"]) <= datetime.now(UTC)
    assert (depth["consumers"], len(depth["not_checked"])) == ([], 1)
    other = await world.run("depth", "--context", "other")
    assert (other.code, "SEA_MQ_CONTEXT" in other.err) == (2, True)


async def test_depth_counts_what_the_stream_has_not_delivered(world: World) -> None:
    stream = f"{world.name.upper()}_EVENTS"
    await world.streams()
    await create_consumer(world.connection, stream, "slow")
    for _ in range(3):
        await store(world.connection, f"{world.name}.event.made.v1")
    given = {"SEA_MQ_CONSUMERS": f"{stream}/slow,{stream}/none"}
    depth = (await world.run("depth", "--json", **given)).json
    assert [(each["durable"], each["pending"]) for each in depth["consumers"]] == [("slow", 3)]
    assert 0 <= depth["consumers"][0]["oldest_seconds"] < 60
    assert depth["not_checked"][0].startswith(f"consumer none of {stream}: ")
    reported = await world.run("depth", SEA_MQ_CONSUMERS=f"{stream}/slow")
    assert re.search(r"inbox +0 .* 3 +\d+ s ", reported.out)
    unknown = await world.run("depth", **given)
    assert ("?" in unknown.out, "not counted: consumer none" in unknown.err) == (True, True)


async def test_the_audit_is_listed_by_actor_action_and_time(world: World) -> None:
    await world.run("outbox", "mark-dead", str(await add_event(world.pool)), *WHY)
    await world.run("prune", "--before", "0s", "--reason", "monthly", "--actor", "Bob")
    for options, expected in (
        ((), ["prune_inbox", "prune_outbox", "mark_dead"]),
        (("--actor", "bob", "--limit", "1"), ["prune_inbox"]),
        (("--action", "mark_dead"), ["mark_dead"]),
        (("--after", "2"), ["mark_dead"]),
        (("--until", "1h"), []),
    ):
        found = (await world.run("audit", "--json", *options)).json
        assert [action["action"] for action in found] == expected, options


# --- replay and discard


@pytest.mark.fault("S18")
async def test_a_replay_is_counted_first_then_done_and_audited(world: World) -> None:
    await world.streams()
    dead = [await add_event(world.pool, "DEAD") for _ in range(11)]
    waiting = await add_event(world.pool)
    chosen = ("outbox", "replay", "--state", "DEAD", *WHY)
    dry = await world.run(*chosen, "--dry-run", "--json")
    assert (dry.json["matched"], dry.json["replayed"], dry.json["dry_run"]) == (11, 0, True)
    unasked = await world.run(*chosen)
    assert (unasked.code, "11 events will be published again" in unasked.err, "--yes" in unasked.err) == (
        2, True, True,
    )  # fmt: skip
    capped = await world.run(*chosen, "--yes", "--cap", "10")
    assert (capped.code, "more than 10 events match" in capped.err) == (2, True)
    assert await world.pool.fetchval("SELECT count(*) FROM operator_actions") == 0
    one = await world.run("outbox", "replay", str(dead[0]), str(waiting), *WHY)
    assert (one.code, one.out, "neither PUBLISHED nor DEAD" in one.err) == (1, "replayed 1 of 1\n", True)
    rest = await world.run("outbox", "replay", "--type", "order.created", *WHY, "--yes", "--json")
    assert (rest.json["matched"], rest.json["replayed"], rest.json["dry_run"]) == (10, 10, False)
    audit = await world.pool.fetch("SELECT actor, action, reason, affected FROM operator_actions ORDER BY id")
    record = ("ann", "replay", "the handler was broken")
    assert [tuple(row) for row in audit] == [(*record, 1), (*record, 10)]


async def test_a_replay_that_was_cut_short_at_its_end_is_finished(world: World) -> None:
    await world.streams()
    await world.run("outbox", "replay", str(await add_event(world.pool, "DEAD")), *WHY)
    await world.pool.execute(
        "ALTER TABLE operator_actions DISABLE TRIGGER operator_actions_grow;"
        "UPDATE operator_actions"
        "   SET selection = jsonb_set(selection, '{progress,finished}', 'false'), outcome = NULL;"
        "ALTER TABLE operator_actions ENABLE TRIGGER operator_actions_grow"
    )
    action = await world.pool.fetchval("SELECT id FROM operator_actions")
    resume = ("outbox", "replay", "--resume", str(action))
    resumed = await world.run(*resume, "--json")
    assert (resumed.json["matched"], resumed.json["replayed"], resumed.json["dry_run"]) == (0, 0, False)
    again = await world.run(*resume)
    assert (again.code, "is finished: it put back 1" in again.err) == (1, True)
    unclear = await world.run(*resume, "--state", "DEAD")
    assert (unclear.code, "leave ids and filters out" in unclear.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ((*WHY,), "choose events by"),
        (("--state", "PENDING", *WHY), "only PUBLISHED and DEAD"),
        (("--state", "DEAD"), "--reason"),
        (("--state", "DEAD", "--reason", " "), "must not be blank"),
        (("--since", "yesterday", *WHY), "30d"),
        (("--since", "999999d", *WHY), "is outside"),
        (("--until", "0001-01-01T00:00:00+14:00", *WHY), "is outside"),
        (("--aggregate", "", *WHY), "expected TYPE or TYPE/ID"),
        (("--aggregate", "order/", *WHY), "expected TYPE or TYPE/ID"),
        (("--error", "", *WHY), "must not be blank"),
        (("--state", "DEAD", "--cap", str(2**63), *WHY), "out of range; correct the options"),
    ],
)
async def test_a_replay_that_is_not_clear_is_refused(
    world: World, options: tuple[str, ...], reported: str
) -> None:
    refused = await world.run("outbox", "replay", *options)
    assert (refused.code, reported in refused.err) == (2, True)


@pytest.mark.fault("S18")
async def test_what_can_never_be_sent_is_discarded_and_the_audit_keeps_what_it_was(world: World) -> None:
    error = "INVALID_OUTBOX: event_type is blank"
    dead = [await add_event(world.pool, "DEAD", error=error, ordering_key="k") for _ in range(11)]
    others = [await add_event(world.pool), await add_event(world.pool, "PUBLISHED")]
    kept = await add_event(world.pool, "DEAD", error="too large")
    chosen = ("outbox", "discard", "--error", "INVALID_OUTBOX", *WHY)
    assert (await world.run(*chosen, "--dry-run")).out == "11 would be deleted\n"
    for unclear in (("outbox", "discard", *WHY), chosen, (*chosen, "--yes", "--cap", "10")):
        assert (await world.run(*unclear)).code == 2
    refused = await world.run("outbox", "discard", *map(str, others), *WHY)
    assert (refused.code, "not there, or not DEAD: 2" in refused.err) == (1, True)
    assert await world.pool.fetchval("SELECT count(*) FROM outbox_events") == 14

    done = await world.run(*chosen, "--yes", "--json")
    assert sorted(done.json["discarded"]) == sorted(map(str, dead))
    rows = await world.pool.fetch("SELECT id FROM outbox_events")
    assert {row["id"] for row in rows} == {*others, kept}
    [record] = (await world.run("audit", "--action", "discard", "--json")).json
    assert (record["actor"], record["affected"], record["outcome"]) == ("ann", 11, "done")
    discarded = json.loads(record["selection"])["discarded"]
    assert [event["id"] for event in discarded] == list(map(str, dead))
    assert (discarded[0]["ordering_key"], discarded[0]["error"]) == ("k", error)
    assert "payload" not in record["selection"]


# --- prune


async def test_prune_deletes_what_is_finished_and_old_on_the_side_asked_for(world: World) -> None:
    old = datetime.now(UTC) - timedelta(days=40)
    await add_message(world.pool, received_at=old, processed=True)
    young = await add_message(world.pool, processed=True)
    kept = await add_message(world.pool, received_at=old, dead=True)
    await add_event(world.pool, "PUBLISHED")
    dry = await world.run("prune", "--before", "30d", *WHY, "--dry-run")
    assert dry.out == "outbox: would delete 0\ninbox: would delete 1\n"
    assert await world.pool.fetchval("SELECT count(*) FROM operator_actions") == 0
    pruned = await world.run("prune", "--before", "30d", *WHY, "--json")
    assert pruned.json["deleted"] == {"outbox": 0, "inbox": 1}
    assert {await world.state_of(young), await world.state_of(kept)} == {"PROCESSED", "DEAD_LETTERED"}
    now = await world.run("prune", "--before", "0s", "--side", "outbox", *WHY)
    assert (now.out, now.err) == ("outbox: deleted 1\n", "outbox: page 1 of 1, 1 rows\n")
    assert await world.state_of(young) == "PROCESSED"


async def test_prune_names_the_partitions_that_it_drops(world: World) -> None:
    await partition_outbox(world.env["SEA_MQ_DATABASE_URL"])
    async with world.pool.acquire() as connection:
        partition = await past_partition(connection, days_ago=2)
    for _ in range(2):
        await add_event(world.pool, "PUBLISHED", id=id_of_day(2))
    command = ("prune", "--before", "0s", "--side", "outbox", *WHY)
    dry = await world.run(*command, "--dry-run")
    assert dry.out == f"outbox: would delete 2, {partition} whole\n"
    pruned = await world.run(*command)
    assert pruned.out == f"outbox: deleted 2; dropped partition {partition}, 2 events\n"
    assert f"dropped partition {partition}, 2 events\n" in pruned.err
    async with world.pool.acquire() as connection:
        await past_partition(connection, days_ago=2)  # as empty as all others
    assert (await world.run(*command, "--json")).json["dropped"] == [{"name": partition, "events": 0}]
    [_, action] = (await world.run("audit", "--json")).json
    assert json.loads(action["selection"])["dropped"] == [partition]


@pytest.mark.fault("N38")
async def test_prune_keeps_what_a_stream_can_still_deliver(world: World, unused_tcp_port: int) -> None:
    upstream = f"{world.name}v"
    env = {"SEA_MQ_CONSUMERS": f"{upstream.upper()}_EVENTS/durable"}
    await create_stream(world.connection, f"{upstream.upper()}_EVENTS", f"{upstream}.event.>")
    now = datetime.now(UTC)
    gone = await add_message(world.pool, received_at=now - timedelta(hours=2), processed=True)
    await world.pool.execute("UPDATE inbox_messages SET processed_at = received_at")
    young = await add_message(world.pool, processed=True)
    await store(world.connection, f"{upstream}.event.made.v1")

    async def prune(*options: str, **more: str) -> Answer:
        return await world.run("prune", "--before", "0s", *options, *WHY, **env, **more)

    kept = await prune("--side", "inbox")
    assert (kept.out, "can still deliver" in kept.err) == ("inbox: deleted 1\n", True)
    assert await world.state_of(young) == "PROCESSED"
    assert (await world.run("inbox", "show", str(gone))).code == 1
    await add_event(world.pool, "PUBLISHED")
    unknown = await prune(SEA_MQ_NATS_URL="")
    assert (unknown.code, "SEA_MQ_NATS_URL" in unknown.err) == (2, True)
    assert await world.pool.fetchval("SELECT count(*) FROM outbox_events") == 1
    away = await prune(SEA_MQ_NATS_URL=f"nats://127.0.0.1:{unused_tcp_port}")
    assert (away.code, away.out, "no server answers" in away.err) == (1, "outbox: deleted 1\n", True)
    assert await world.state_of(young) == "PROCESSED"
    assert (await prune("--side", "inbox", "--deliverable")).out == "inbox: deleted 1\n"


# --- what is missing or refused


async def test_what_is_missing_is_named_with_what_to_do(world: World, unused_tcp_port: int) -> None:
    nobody = f"postgresql://u:p@127.0.0.1:{unused_tcp_port}/d"
    for command, env, code, reported in (
        (("outbox", "list"), {"SEA_MQ_DATABASE_URL": ""}, 2, "SEA_MQ_DATABASE_URL"),
        (("dlq", "redrive", "1", *WHY), {}, 2, "SEA_MQ_HANDLER_URL"),
        (("audit", "--action", "prune"), {}, 2, "is not one of"),
        (("inbox", "list", "--reason", "closed"), {}, 2, "is not one of"),
        (("depth",), {"SEA_MQ_DATABASE_URL": nobody}, 1, "python -m sea_mq_worker doctor"),
        (("dlq", "list"), {}, 3, "streams apply"),
    ):
        refused = await world.run(*command, **env)
        assert (refused.code, reported in refused.err) == (code, True), refused.err


async def test_the_error_of_a_slow_database_names_the_remedy(world: World) -> None:
    await add_event(world.pool, "PUBLISHED")
    await world.pool.execute("ALTER TABLE outbox_events RENAME TO quick")
    await world.pool.execute(
        "CREATE VIEW outbox_events AS SELECT * FROM quick WHERE pg_sleep(60) IS NOT NULL"
    )
    short = {"SEA_MQ_DATABASE_TIMEOUT_SECONDS": "1"}
    slow = await world.run("outbox", "list", "--state", "PUBLISHED", **short)
    assert (slow.code, "found by --correlation" in slow.err) == (1, True)
    await world.pool.execute("UPDATE quick SET state = 'PENDING', published_at = NULL")
    slow = await world.run("outbox", "list", **short)
    assert (slow.code, "read less with --read" in slow.err) == (1, True)


async def test_a_missing_schema_says_migrate(world: World, postgres_server: PostgresAddress) -> None:
    async with scratch_database(postgres_server, prefix="empty_") as empty:
        refused = await world.run("depth", SEA_MQ_DATABASE_URL=empty.dsn)
        assert (refused.code, "migrate" in refused.err) == (3, True)
        found = await world.run("doctor", "--json", SEA_MQ_DATABASE_URL=empty.dsn)
    assert "python -m sea_mq_worker migrate" in {finding["command"] for finding in found.json}


async def test_tables_of_another_context_are_refused(world: World) -> None:
    await world.streams()
    dead, waiting = str(await add_event(world.pool, "DEAD")), str(await add_event(world.pool))
    await world.pool.execute("INSERT INTO sea_mq_context (context) VALUES ('orders')")
    for command in (
        ("outbox", "replay", dead, *WHY),
        ("outbox", "mark-dead", waiting, *WHY),
        ("outbox", "discard", dead, *WHY),
        ("inbox", "close", waiting, *WHY),
        ("inbox", "resume", *WHY),
        ("dlq", "purge", "1", *WHY),
        ("prune", "--before", "0s", *WHY),
        ("partitions", "enable", *WHY),
        ("depth",),
    ):
        refused = await world.run(*command)
        assert (refused.code, f"context orders, not to {world.name}" in refused.err) == (3, True)
    assert await world.pool.fetchval("SELECT count(*) FROM operator_actions") == 0
