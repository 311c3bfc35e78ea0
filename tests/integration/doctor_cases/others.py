"""Causes of doctor's findings in the handler, in the settings and between two systems."""

import signal

from sea_mq_worker.admin.server import AdminServer
from sea_mq_worker.doctor import examine
from sea_mq_worker.doctor.findings import Finding
from sea_mq_worker.operators.records import OutboxFilter
from sea_mq_worker.operators.replay import replay_matching
from tests.integration.doctor_cases.database import PUBLISHED
from tests.integration.doctor_cases.registry import (
    CASES,
    UNUSED,
    by_definition,
    by_setting,
    provokes,
    provokes_in_tables,
)
from tests.support.checkups import Mend, Patient
from tests.support.clocks import nats_clock
from tests.support.handlers import Behaviour, answer, hang, raw
from tests.support.jetstream import SECOND
from tests.support.rows import add_event
from tests.support.waiting import eventually

PROCESSED = "SELECT bool_and(processed_at IS NOT NULL) FROM inbox_messages"

# --- the handler

by_setting("handler_unreachable", handler_url=f"http://{UNUSED}/handle")


def by_answer(slug: str, behaviour: Behaviour) -> None:
    async def provoke(p: Patient) -> Mend:
        p.handler.default = behaviour

        async def fix(_finding: Finding) -> None:
            p.handler.default = answer(405)

        return fix

    CASES[slug] = provoke


by_answer("handler_path", answer(404))
by_answer("handler_path__speaks_no_http", raw(b"220 mail.example ESMTP\r\n"))
by_answer("handler_unreachable__silent", hang)

# To the settings it is a name like any other; a resolver reads its digits.
# --- a consumer and the inbox


# --- the worker


@provokes
async def worker_not_ready(p: Patient) -> Mend:
    """It is guarded by a token, and tells those who do not have it which part pauses, and no more."""
    reasons = {"handler": "the handler rejects message after message: the handler answered 422"}
    token = p.files / "token"
    token.write_text("s3cret")
    token.chmod(0o600)
    server = AdminServer(host="127.0.0.1", port=0, reasons=lambda: reasons, token=lambda: "s3cret")
    await server.start()
    p.stack.push_async_callback(server.close)
    p.given |= {"admin_port": server.port, "admin_token_file": p.files / "missing"}
    found = await p.finds("worker_not_ready")
    assert found["worker_not_ready"].what == "handler"
    p.given["admin_token_file"] = token

    async def heal(finding: Finding) -> None:
        assert finding.what == f"handler: {reasons['handler']}"
        assert (await examine(p.settings())).not_checked == []
        reasons.clear()

    return heal


@provokes_in_tables
async def worker_not_ready__silent(p: Patient) -> Mend:
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
    server = AdminServer(host="127.0.0.1", port=0, warnings=lambda: warnings)
    await server.start()
    p.stack.push_async_callback(server.close)
    p.given |= {"admin_port": server.port}

    async def heal(finding: Finding) -> None:
        assert finding.what == "event type made: the handler answered 503"
        warnings.clear()

    return heal


# --- what may be read, and by whom


# --- what must fit together

by_definition("window_short__for_a_publish", "SEA_EVENTS", duplicate_window=5 * SECOND)
by_definition("window_short", "SEA_EVENTS", duplicate_window=120 * SECOND)
by_definition("consumer_unfit__ack_wait", "consumer", ack_wait=30 * SECOND)
by_definition("consumer_unfit__max_deliver", "consumer", max_deliver=10)


@provokes
async def clocks_differ__of_nats(p: Patient) -> Mend:
    right = p.given["nats_url"]
    _, p.given["nats_url"] = await p.stack.enter_async_context(nats_clock(str(right)))
    return p.changing(nats_url=right)


@provokes_in_tables
async def events_lost(p: Patient) -> Mend:
    """The stream was set back behind what it had acknowledged."""
    await add_event(p.pool, "PUBLISHED")
    await p.sql("UPDATE outbox_events SET stream = $1, stream_seq = 52221", p.settings().stream)

    async def send_again(_finding: Finding) -> None:
        await replay_matching(p.pool, OutboxFilter(), actor="ann", reason="lost", cap=1)
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
