"""The worker's session in PostgreSQL, and the takeover from workers whose sessions have ended."""

from dataclasses import replace

from sea_mq_worker.adapters.postgres.worker_session import PostgresWorkerSession
from sea_mq_worker.application.takeover import Takeover
from sea_mq_worker.bootstrap.worker.context import WorkerContext
from sea_mq_worker.domain.facts import Noticed


async def with_session(base: WorkerContext) -> WorkerContext:
    """Begin the session, except behind a pooler, which gives the worker no session of its own.

    A worker without one works as well: its leases end by their time alone.
    """
    s = base.settings
    sides = [side for side, works in (("outbox", s.outbox_enabled), ("inbox", s.consumers)) if works]
    if s.database_pooler or not sides:
        return base
    session = PostgresWorkerSession(
        dsn=s.database_url.get_secret_value(),
        schema=s.database_schema,
        worker=base.name,
        sides=sides,
        silent_seconds=max(s.outbox_lease_seconds, s.inbox_lease_seconds),
        on_event=lambda event, text: base.observer.observe(Noticed(event=event, text=text)),
        clock=base.clock,
    )
    await session.start()
    base.stack.push_async_callback(session.close)
    return replace(base, session=session, takeover=Takeover(sessions=session, observer=base.observer))
