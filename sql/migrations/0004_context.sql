-- Whose tables these are. A worker of another context would publish events under the wrong subjects, and take what
-- this one has received for done.

CREATE TABLE sea_mq_context (
    one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one),
    context TEXT NOT NULL,
    since TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE sea_mq_context IS 'The bounded context that these tables belong to: the first that a worker ran for.';

-- Which durables are consumed with these tables, and for which handler. Two handlers for the same subjects would get a
-- part of the messages each, for an inbox row counts for all that share the tables.

CREATE TABLE sea_mq_consumers (
    stream TEXT,
    durable TEXT,
    handler TEXT,
    subjects TEXT[] NOT NULL,
    seen_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT sea_mq_consumers_pkey PRIMARY KEY (stream, durable, handler)
);

COMMENT ON TABLE sea_mq_consumers IS 'Durables and the handlers that workers consume them for, with when such a worker last said so.';
COMMENT ON COLUMN sea_mq_consumers.handler IS 'Scheme, host and port, and the beginning of the whole URL''s SHA-256.';

-- How far each durable was with its stream when a worker last looked: what was pending then, and is neither delivered nor
-- in the stream now, was lost to retention or a purge.

CREATE TABLE sea_mq_standings (
    stream TEXT,
    durable TEXT,
    standing JSONB NOT NULL,
    unseen BIGINT NOT NULL,
    unseen_first_seq BIGINT,
    unseen_last_seq BIGINT,
    unseen_at TIMESTAMPTZ,
    CONSTRAINT sea_mq_standings_pkey PRIMARY KEY (stream, durable)
);

COMMENT ON TABLE sea_mq_standings IS 'The last look at each durable, and what left its stream before it was delivered.';
COMMENT ON COLUMN sea_mq_standings.unseen IS 'Messages in all; the sequences and the time are those of the last find.';
