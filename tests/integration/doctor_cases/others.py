"""Causes of doctor's findings in the handler, in the settings and between two systems."""

import signal
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from sea_mq_worker.admin.http import TokenAuth
from sea_mq_worker.admin.server import AdminServer, Routes
from sea_mq_worker.doctor import examine
from sea_mq_worker.doctor.findings import Finding
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import replay_matching
from sea_mq_worker.operators.tables import PostgresOperations, PostgresReplays
from tests.integration.doctor_cases.database import PUBLISHED
from tests.integration.doctor_cases.registry import (
    CASES,
    UNUSED,
    by_definition,
    by_setting,
    mended_by,
    provokes,
    provokes_in_tables,
)
from tests.support.checkups import Mend, Patient
from tests.support.handlers import Behaviour, answer, hang, raw
from tests.support.jetstream import DAY, SECOND
from tests.support.other_clock import nats_clock
from tests.support.rows import add_event, add_message
from tests.support.waiting import eventually

PROCESSED = "SELECT bool_and(processed_at IS NOT NULL) FROM inbox_messages"

# --- the handler

by_setting("handler_missing", handler_url="")
by_setting("handler_unreachable", handler_url=f"http://{UNUSED}/handle")

by_setting("handler_unreachable__batches", handler_batch_url=f"http://{UNUSED}/handle-batch")


def by_answer(slug: str, behaviour: Behaviour) -> None:
    async def provoke(p: Patient) -> Mend:
        p.handler.default = behaviour

        async def fix(_finding: Finding) -> None:
            p.handler.default = answer(405)

        return fix

    CASES[slug] = provoke


by_answer("handler_path", answer(404))
by_answer("handler_path__redirects", answer(308))
by_answer("handler_path__speaks_no_http", raw(b"220 mail.example ESMTP\r\n"))
by_answer("handler_silent", hang)

# To the settings it is a name like any other; a resolver reads its digits.
by_setting("handler_forbidden", handler_url="http://\uff11\uff16\uff19.254.169.254/handle")


# --- a consumer and the inbox


@provokes_in_tables
async def deliveries_unrecorded(p: Patient) -> Mend:
    """A message was delivered to somebody who has gone; a leased one is in flight, too."""
    await p.define("consumer", ack_wait=5 * SECOND)
    p.given |= {"handler_timeout_seconds": 1.0, "database_timeout_seconds": 0.5}
    p.handler.default = answer(200)
    await p.received(seq=await p.send(), hours=0)
    await p.sql("UPDATE inbox_messages SET locked_until = now() + interval '5 s', locked_by = 'w#'")
    await p.send()
    for _ in range(2):
        await p.take()

    async def wait(finding: Finding) -> None:
        assert "2 in flight, from sequence 1 to 2; 1 unsettled in the inbox; ack_wait is 5 s" in finding.what

        async def in_flight() -> int:
            found = await p.ask(f"CONSUMER.INFO.{p.upstream_stream}.{p.durable}")
            return int(found["num_ack_pending"])

        async with p.worker():
            await eventually(in_flight, until=lambda count: count == 0, what="both are settled")

    return wait


# --- the worker


@provokes
async def worker_not_ready(p: Patient) -> Mend:
    """It is guarded by a token, and tells those who do not have it which part pauses, and no more."""
    reasons = {"handler": "the handler rejects message after message: the handler answered 422"}
    token = p.files / "token"
    token.write_text("s3cret")
    token.chmod(0o600)
    access = TokenAuth(lambda: "s3cret")
    routes = Routes(
        ready=lambda: reasons, metrics=bytes, status=dict, history=dict, access=access, operator_api=None
    )
    server = AdminServer(host="127.0.0.1", port=0, routes=routes)
    await server.start()
    p.stack.push_async_callback(server.close)
    p.given |= {"admin_port": server.port, "admin_token_file": p.files / "missing"}
    found = await p.finds("worker_not_ready", "secret_file_unreadable")
    assert found["worker_not_ready"].what == "handler"
    p.given["admin_token_file"] = token

    async def heal(finding: Finding) -> None:
        assert finding.what == f"handler: {reasons['handler']}"
        assert (await examine(p.settings())).not_checked == []
        reasons.clear()

    return heal


@provokes_in_tables
async def worker_silent(p: Patient) -> Mend:
    """A worker that is stopped, as by a debugger or a machine that is suspended, while an event waits."""
    p.expect_soon()
    worker = await p.stack.enter_async_context(p.worker())
    worker.send(signal.SIGSTOP)
    p.given["admin_port"] = int(worker.address.rpartition(":")[2].strip("/"))
    await add_event(p.pool)

    async def let_continue(finding: Finding) -> None:
        assert "SIGCONT" in finding.fix
        worker.send(signal.SIGCONT)
        await eventually(lambda: p.pool.fetchval(PUBLISHED), what="the event is published")

    return let_continue


@provokes
async def worker_warns(p: Patient) -> Mend:
    warnings = {"event type made": "the handler answered 503"}
    routes = Routes(
        ready=dict,
        warnings=lambda: warnings,
        metrics=bytes,
        status=dict,
        history=dict,
        access=TokenAuth(str),
        operator_api=None,
    )
    server = AdminServer(host="127.0.0.1", port=0, routes=routes)
    await server.start()
    p.stack.push_async_callback(server.close)
    p.given |= {"admin_port": server.port}

    async def heal(finding: Finding) -> None:
        assert finding.what == "event type made: the handler answered 503"
        warnings.clear()

    return heal


# --- what may be read, and by whom


@provokes
async def secret_file_unreadable(p: Patient) -> Mend:
    file = p.files / "token"
    p.given["handler_token_file"] = file

    async def write(_finding: Finding) -> None:
        file.touch(mode=0o600)

    return write


@provokes
async def secret_file_exposed(p: Patient) -> Mend:
    file = p.files / "token"
    file.write_text("secret")
    file.chmod(0o644)
    p.given["handler_token_file"] = file

    return p.command


@provokes
async def plaintext_connection(p: Patient) -> Mend:
    """This machine by another name, of which nobody can say that it is this machine's."""
    right = str(p.given["nats_url"])
    p.given["nats_url"] = f"nats://0.0.0.0:{urlsplit(right).port}"
    return p.changing(nats_url=right)


# --- what must fit together

by_definition("window_below_publish", "SEA_EVENTS", duplicate_window=5 * SECOND)
by_definition("window_below_lease", "SEA_EVENTS", duplicate_window=30 * SECOND)
by_definition("window_below_backoff", "SEA_EVENTS", duplicate_window=120 * SECOND)
by_definition("window_delays_replay", "SEA_EVENTS", duplicate_window=2 * DAY)
by_definition("ack_wait_short", "consumer", ack_wait=30 * SECOND)
by_definition("max_deliver_low", "consumer", max_deliver=10)
by_definition("max_ack_pending_low", "consumer", max_ack_pending=10)
by_definition("consumer_filter", "consumer", filter_subject="nothing.of.it")
by_definition("retries_outlive_stream", "upstream", max_age=3600 * SECOND)


@provokes
async def broker_clock(p: Patient) -> Mend:
    right = p.given["nats_url"]
    _, p.given["nats_url"] = await p.stack.enter_async_context(nats_clock(str(right)))
    return p.changing(nats_url=right)


@provokes_in_tables
async def event_too_large(p: Patient) -> Mend:
    await add_event(p.pool, payload='{{"text": "{}"}}'.format("x" * 2000))
    return await p.define("SEA_EVENTS", max_msg_size=1000)


@provokes_in_tables
async def events_lost(p: Patient) -> Mend:
    """The stream was set back behind what it had acknowledged."""
    await add_event(p.pool, "PUBLISHED")
    await p.sql("UPDATE outbox_events SET stream = $1, stream_seq = 52221", p.settings().stream)

    async def send_again(_finding: Finding) -> None:
        replays = PostgresReplays(pool=p.pool)
        await replay_matching(replays, OutboxFilter(), actor="ann", reason="lost", cap=1)
        async with p.worker():
            await eventually(lambda: p.pool.fetchval(PUBLISHED), what="the event is published again")

    return send_again


@provokes_in_tables
async def message_lost(p: Patient) -> Mend:
    seq = await p.send()
    await p.ask(f"STREAM.PURGE.{p.upstream_stream}")
    await p.received(seq=seq, hours=0)

    async def send_again(finding: Finding) -> None:
        await p.command(finding)
        await p.send(await p.pool.fetchval("SELECT message_id::text FROM inbox_messages"))
        async with p.worker():
            await eventually(lambda: p.pool.fetchval(PROCESSED), what="the message has its effect")

    return send_again


@provokes_in_tables
async def inbox_pruned_early(p: Patient) -> Mend:
    await p.send()
    await p.take()
    await add_message(p.pool, processed=True)
    soon = datetime.now(UTC) + timedelta(minutes=1)
    await PostgresOperations(pool=p.pool).prune("inbox", soon, actor="ann", reason="a test")
    return mended_by(lambda: p.ask(f"STREAM.PURGE.{p.upstream_stream}"))
