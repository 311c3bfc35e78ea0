-- Whose tables these are. A worker of another context would publish events under the wrong subjects, and take what
-- this one has received for done.

CREATE TABLE sea_mq_context (
    one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one),
    context TEXT NOT NULL,
    since TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE sea_mq_context IS 'The bounded context that these tables belong to: that of the first worker.';
COMMENT ON COLUMN sea_mq_context.one IS 'Key of the only row.';
COMMENT ON COLUMN sea_mq_context.context IS 'First token of every own subject.';
COMMENT ON COLUMN sea_mq_context.since IS 'Time of the first worker''s first start.';

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

COMMENT ON TABLE sea_mq_consumers IS 'Durable consumers that workers consume, and for which handler.';
COMMENT ON COLUMN sea_mq_consumers.stream IS 'Stream of the durable.';
COMMENT ON COLUMN sea_mq_consumers.durable IS 'Name of the durable consumer.';
COMMENT ON COLUMN sea_mq_consumers.handler IS
    'Scheme, host and port of the handler, and the beginning of the whole URL''s SHA-256.';
COMMENT ON COLUMN sea_mq_consumers.subjects IS 'Subjects that the durable filters by.';
COMMENT ON COLUMN sea_mq_consumers.seen_at IS
    'Last time that a worker consumed it for this handler; -infinity: that worker stopped.';

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

COMMENT ON TABLE sea_mq_standings IS 'Progress of each durable at the last look, and messages that left its stream before delivery.';
COMMENT ON COLUMN sea_mq_standings.stream IS 'Stream of the durable.';
COMMENT ON COLUMN sea_mq_standings.durable IS 'Name of the durable consumer.';
COMMENT ON COLUMN sea_mq_standings.standing IS 'Progress of stream and durable at the last look.';
COMMENT ON COLUMN sea_mq_standings.unseen IS 'Number of missed messages, in total.';
COMMENT ON COLUMN sea_mq_standings.unseen_first_seq IS 'First sequence of the last find.';
COMMENT ON COLUMN sea_mq_standings.unseen_last_seq IS 'Last sequence of the last find.';
COMMENT ON COLUMN sea_mq_standings.unseen_at IS 'Time of the last find; null: none.';
