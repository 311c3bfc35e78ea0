-- The inbox: SDS-047's inbox_messages, which makes an effect happen once, with columns for the lease, the dead letter
-- and the hash of the content. A constraint that enforces a policy is named by the policy's error code.

CREATE TABLE inbox_messages (
    message_id UUID,
    subject TEXT NOT NULL,
    received_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    processed_at TIMESTAMPTZ,
    attempts INT NOT NULL DEFAULT 0,
    last_error TEXT,
    -- origin and content of the message
    consumer TEXT,
    stream TEXT,
    stream_seq BIGINT,
    content_hash BYTEA,
    -- the processing lease; null: no worker holds one
    locked_until TIMESTAMPTZ,
    locked_by TEXT,
    -- the reply subject of the leased delivery, for whoever takes over from a worker that died
    reply TEXT,
    -- CMD-052: written before the dead letter is published, and after its stream's acknowledgement
    dead_letter_reason TEXT,
    dead_letter_begun_at TIMESTAMPTZ,
    dead_lettered_at TIMESTAMPTZ,
    CONSTRAINT "DUPLICATE_MESSAGE" PRIMARY KEY (message_id),
    CONSTRAINT "INVALID_TIMESTAMP" CHECK (processed_at IS NULL OR processed_at >= received_at),
    CONSTRAINT chk_inbox_attempts CHECK (attempts >= 0),
    CONSTRAINT chk_inbox_lease CHECK ((locked_until IS NULL) = (locked_by IS NULL)),
    CONSTRAINT chk_inbox_settled_once CHECK (processed_at IS NULL OR dead_lettered_at IS NULL),
    CONSTRAINT chk_inbox_dead_letter CHECK (
        dead_lettered_at IS NULL OR (dead_letter_reason IS NOT NULL AND dead_letter_begun_at IS NOT NULL)
    )
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

COMMENT ON TABLE inbox_messages IS 'Received messages and their results (SDS-047 2.2). The row of a processed message prevents a second handling.';
COMMENT ON COLUMN inbox_messages.message_id IS 'UUID of the message: the event''s ID.';
COMMENT ON COLUMN inbox_messages.subject IS 'Subject of the message.';
COMMENT ON COLUMN inbox_messages.received_at IS 'Time of the first delivery.';
COMMENT ON COLUMN inbox_messages.processed_at IS 'Time of the handler''s success; null: none yet.';
COMMENT ON COLUMN inbox_messages.attempts IS
    'Leases, counted before the handler is called. An attempt that was given back is subtracted.';
COMMENT ON COLUMN inbox_messages.last_error IS 'Error of the last attempt, or reason and detail of the dead letter.';
COMMENT ON COLUMN inbox_messages.consumer IS 'Durable consumer that delivered it last.';
COMMENT ON COLUMN inbox_messages.stream IS 'Stream that it came from.';
COMMENT ON COLUMN inbox_messages.stream_seq IS 'Sequence in that stream.';
COMMENT ON COLUMN inbox_messages.content_hash IS
    'SHA-256 over subject and body. The same ID with other content is a conflict.';
COMMENT ON COLUMN inbox_messages.locked_until IS 'End of the lease; null: no worker holds one.';
COMMENT ON COLUMN inbox_messages.locked_by IS 'Token of the lease; null: no worker holds one.';
COMMENT ON COLUMN inbox_messages.reply IS
    'Reply subject of the leased delivery, by which the server delivers it again if the worker dies.';
COMMENT ON COLUMN inbox_messages.dead_letter_reason IS
    'Reason of the dead letter, recorded before it is published (CMD-052).';
COMMENT ON COLUMN inbox_messages.dead_letter_begun_at IS 'Time from which on the dead letter may be in its stream.';
COMMENT ON COLUMN inbox_messages.dead_lettered_at IS
    'Time at which the dead-letter stream had acknowledged, or an operator gave the message up.';

CREATE INDEX idx_inbox_unprocessed ON inbox_messages (received_at) WHERE processed_at IS NULL;
CREATE INDEX idx_inbox_dead_lettered ON inbox_messages (dead_lettered_at) WHERE dead_lettered_at IS NOT NULL;

COMMENT ON INDEX idx_inbox_unprocessed IS 'SDS-047: the depth, the age of the oldest message, and overdue messages.';
COMMENT ON INDEX idx_inbox_dead_lettered IS 'Numbers and lists of dead-lettered messages, and their pruning.';
