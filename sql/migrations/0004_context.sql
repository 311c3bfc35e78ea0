-- Whose tables these are. A worker of another context would publish events under the wrong subjects, and take what
-- this one has received for done.

CREATE TABLE sea_mq_context (
    one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one),
    context TEXT NOT NULL,
    since TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE sea_mq_context IS 'The bounded context that these tables belong to: the first that a worker ran for.';
