"""Doctor: what keeps this worker from running well, why, and the command that mends it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

from sea_mq_worker.adapters.nats import topology
from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from sea_mq_worker.adapters.nats.errors import ApiRefusedError
from sea_mq_worker.adapters.nats.facts import stream_facts
from sea_mq_worker.bootstrap.connections import handler_tls
from sea_mq_worker.bootstrap.operator import broker, operations, wanted_topology
from sea_mq_worker.domain.errors import ContractError, UnavailableError, WorkerError
from sea_mq_worker.settings import ConsumerSettings, Settings

_CONNECT_SECONDS = 3.0
_NANOSECONDS = 1e9
_NOT_FOUND = 404
_REFUSES = "the worker refuses to start"
_MIGRATE = "sea-mq-worker migrate"
_APPLY = "sea-mq-worker streams apply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong: where, what and why it matters, and what mends it."""

    where: str
    why: str
    mend: str


async def examine(settings: Settings) -> Sequence[Finding]:
    """Look at everything once, changing nothing; each dependency apart from the others."""
    findings = [finding async for finding in _database(settings)]
    findings += [finding async for finding in _broker(settings)]
    if settings.consumers:
        findings += [finding async for finding in _handler(settings)]
    return findings


async def _database(settings: Settings) -> AsyncIterator[Finding]:
    try:
        async with operations(settings):
            return
    except ContractError as error:
        yield Finding(where="schema", why=str(error), mend=_MIGRATE)
    except WorkerError as error:
        mend = "start PostgreSQL, or correct SEA_MQ_DATABASE_URL"
        yield Finding(where="database", why=f"{error}; nothing is published or received", mend=mend)


async def _broker(settings: Settings) -> AsyncIterator[Finding]:
    async with AsyncExitStack() as stack:
        try:
            connection = await stack.enter_async_context(broker(settings))
            for difference in await topology.check(connection, wanted_topology(settings)):
                yield Finding(where="topology", why=str(difference), mend=_APPLY)
            async for finding in _streams(connection, settings):
                yield finding
            for durable in settings.consumers:
                async for finding in _consumer(connection, durable, settings):
                    yield finding
        except UnavailableError as error:
            mend = "start NATS with JetStream, or correct SEA_MQ_NATS_URL"
            yield Finding(where="broker", why=f"{error}; nothing is published or received", mend=mend)
        except ContractError as error:
            mend = "correct the credentials (SEA_MQ_NATS_*) or grant what is missing, then run doctor again"
            yield Finding(where="broker", why=str(error), mend=mend)


async def _streams(connection: NatsConnection, settings: Settings) -> AsyncIterator[Finding]:
    """Streams that settings name and no definition does, and the duplicate window."""
    defined = {definition.name for definition in wanted_topology(settings)}
    for name in (settings.stream, settings.dlq_stream, settings.advisory_stream):
        try:
            facts = await stream_facts(connection, name)
        except ContractError as error:
            if name not in defined:
                mend = f"define {name} in SEA_MQ_STREAMS_FOLDER and run `{_APPLY}`, or correct its setting"
                yield Finding(where=f"stream {name}", why=str(error), mend=mend)
            continue
        if facts.forgetful:
            why = "it acknowledges before it stores: what it confirmed may be lost with its server's process"
            mend = "make the stream anew with `storage: file` and without `persist_mode: async`"
            yield Finding(where=f"stream {name}", why=why, mend=mend)
        if facts.useless:
            mend = f"run `{_APPLY}`; a sealed stream has to be deleted first, or another one named"
            yield Finding(where=f"stream {name}", why=f"{facts.useless}: nothing is published", mend=mend)
        if name == settings.stream:
            for finding in _window(facts.duplicate_window_seconds, settings):
                yield finding


def _window(seconds: float, s: Settings) -> Sequence[Finding]:
    needed = s.outbox_lease_seconds + s.outbox_publish_timeout_seconds
    if seconds >= needed:
        return ()
    why = (
        f"duplicate_window is {seconds:g} s, lease and publish time-out together are {needed:g} s: "
        f"after a crash an event is searched for in the stream before it is sent again"
    )
    if seconds <= s.outbox_publish_timeout_seconds:
        why = f"duplicate_window, {seconds:g} s, is not longer than the publish time-out: {_REFUSES}"
    mend = (
        f"raise duplicate_window in its definition and run `{_APPLY}`, or lower SEA_MQ_OUTBOX_LEASE_SECONDS"
    )
    return (Finding(where=f"stream {s.stream}", why=why, mend=mend),)


async def _consumer(
    connection: NatsConnection, durable: ConsumerSettings, s: Settings
) -> AsyncIterator[Finding]:
    where = f"consumer {durable.durable} of stream {durable.stream}"
    try:
        info = await api(connection, f"CONSUMER.INFO.{durable.stream}.{durable.durable}")
    except ApiRefusedError as error:
        if error.code != _NOT_FOUND:
            raise
        mend = f"define it in SEA_MQ_STREAMS_FOLDER and run `{_APPLY}`, or correct SEA_MQ_CONSUMERS"
        yield Finding(where=where, why="it does not exist: nothing is received", mend=mend)
        return
    ack_wait = info["config"].get("ack_wait", 0) / _NANOSECONDS
    if s.handler_timeout_seconds >= ack_wait:
        why = (
            f"ack_wait is {ack_wait:g} s, a handler call may take {s.handler_timeout_seconds:g} s: {_REFUSES}"
        )
        mend = f"set SEA_MQ_HANDLER_TIMEOUT_SECONDS below {ack_wait:g}, or raise ack_wait and run `{_APPLY}`"
        yield Finding(where=where, why=why, mend=mend)
    max_deliver = info["config"].get("max_deliver", -1)
    if 0 < max_deliver <= s.inbox_attempts_max:
        why = (
            f"max_deliver is {max_deliver}, the worker itself tries {s.inbox_attempts_max} times: {_REFUSES}"
        )
        mend = f"set SEA_MQ_INBOX_ATTEMPTS_MAX below {max_deliver}, or raise max_deliver and run `{_APPLY}`"
        yield Finding(where=where, why=why, mend=mend)


async def _handler(settings: Settings) -> AsyncIterator[Finding]:
    if not settings.handler_url:
        why = f"there are consumers and no handler: {_REFUSES}"
        mend = "set SEA_MQ_HANDLER_URL, or SEA_MQ_CONSUMERS= to receive nothing"
        yield Finding(where="handler", why=why, mend=mend)
        return
    url = urlsplit(settings.handler_url)
    port = url.port or (443 if url.scheme == "https" else 80)
    trust = (handler_tls(settings) or ssl.create_default_context()) if url.scheme == "https" else None
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(url.hostname, port, ssl=trust)
        writer.close()
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason
        why = f"{url.hostname}:{port} cannot be trusted ({reason}): receiving pauses"
        mend = "check its certificate and host name, SEA_MQ_HANDLER_TLS_* and both clocks"
        yield Finding(where="handler", why=why, mend=mend)
    except OSError as error:
        why = f"{url.hostname}:{port} takes no connection ({str(error) or 'no answer'}): receiving pauses"
        yield Finding(where="handler", why=why, mend="start the handler, or correct SEA_MQ_HANDLER_URL")
