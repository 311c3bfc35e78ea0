-- Who changed what by hand: every replay, burial, redrive and prune leaves one row.

CREATE TABLE operator_actions (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    reason TEXT NOT NULL,
    -- the filter that was given, as the operator gave it
    selection JSONB NOT NULL,
    affected INT NOT NULL
);

COMMENT ON TABLE operator_actions IS 'Audit record of operator actions (Open Outbox, operator).';
