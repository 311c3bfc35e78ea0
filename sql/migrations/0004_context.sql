-- The context that owns the tables. A worker of another context would publish events under the wrong subjects, and
-- would treat this context's messages as processed.

CREATE TABLE sea_mq_context (
    one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one),
    context TEXT NOT NULL,
    since TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE sea_mq_context IS 'The bounded context that these tables belong to: that of the first worker.';
COMMENT ON COLUMN sea_mq_context.one IS 'Key of the only row.';
COMMENT ON COLUMN sea_mq_context.context IS 'First token of every own subject.';
COMMENT ON COLUMN sea_mq_context.since IS 'Time of the first worker''s first start.';

-- The durables that are consumed with these tables, and their handlers. Two handlers for the same subjects would each
-- get only some of the messages, because an inbox row counts for all workers that share the tables.

CREATE TABLE sea_mq_consumers (
    stream TEXT,
    durable TEXT,
    handler TEXT,
    subjects TEXT[] NOT NULL,
    seen_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT sea_mq_consumers_pkey PRIMARY KEY (stream, durable, handler)
);

COMMENT ON TABLE sea_mq_consumers IS 'Durable consumers that workers consume, each with its handler.';
COMMENT ON COLUMN sea_mq_consumers.stream IS 'Stream of the durable.';
COMMENT ON COLUMN sea_mq_consumers.durable IS 'Name of the durable consumer.';
COMMENT ON COLUMN sea_mq_consumers.handler IS
    'Scheme, host and port of the handler, and the beginning of the whole URL''s SHA-256.';
COMMENT ON COLUMN sea_mq_consumers.subjects IS 'Subjects that the durable filters by.';
COMMENT ON COLUMN sea_mq_consumers.seen_at IS
    'Last time that a worker consumed it for this handler; -infinity: that worker stopped.';

-- Progress of each durable at a worker's last check. Messages that were pending then, and are neither delivered nor in
-- the stream at the next check, were missed: retention or a purge removed them.

CREATE TABLE sea_mq_standings (
    stream TEXT,
    durable TEXT,
    standing JSONB NOT NULL,
    missed BIGINT NOT NULL,
    missed_first_seq BIGINT,
    missed_last_seq BIGINT,
    missed_at TIMESTAMPTZ,
    CONSTRAINT sea_mq_standings_pkey PRIMARY KEY (stream, durable)
);

COMMENT ON TABLE sea_mq_standings IS 'Progress of each durable at the last check, and its missed messages.';
COMMENT ON COLUMN sea_mq_standings.stream IS 'Stream of the durable.';
COMMENT ON COLUMN sea_mq_standings.durable IS 'Name of the durable consumer.';
COMMENT ON COLUMN sea_mq_standings.standing IS 'Progress of stream and durable at the last check.';
COMMENT ON COLUMN sea_mq_standings.missed IS 'Number of missed messages, in total.';
COMMENT ON COLUMN sea_mq_standings.missed_first_seq IS 'First sequence of the last missed range.';
COMMENT ON COLUMN sea_mq_standings.missed_last_seq IS 'Last sequence of the last missed range.';
COMMENT ON COLUMN sea_mq_standings.missed_at IS 'Time of the last detection; null: none.';

-- The sessions of running workers, one row for each side that a worker has. Each connection of a worker holds the shared
-- advisory lock (7184, session): while one of them lives, so does the worker. A lock that nobody holds proves the end of
-- a worker only if the worker had one on this very server. So the table is unlogged: it is emptied by what takes all
-- locks away without a normal shutdown, a crash or a promotion, and server_started_at tells after a normal one.

CREATE UNLOGGED TABLE sea_mq_sessions (
    session TEXT,
    side TEXT,
    worker TEXT NOT NULL,
    server_started_at TIMESTAMPTZ NOT NULL DEFAULT pg_postmaster_start_time(),
    CONSTRAINT sea_mq_sessions_pkey PRIMARY KEY (session, side)
);

COMMENT ON TABLE sea_mq_sessions IS 'Sessions of running workers: the leases of a worker end with its connections.';
COMMENT ON COLUMN sea_mq_sessions.session IS 'Key of the advisory lock, in hexadecimal digits; part of claimed_by and locked_by.';
COMMENT ON COLUMN sea_mq_sessions.side IS 'Side of the worker: outbox or inbox.';
COMMENT ON COLUMN sea_mq_sessions.worker IS 'Name of the worker.';
COMMENT ON COLUMN sea_mq_sessions.server_started_at IS 'Start of the server on which the session began; a session of an earlier start proves nothing.';
