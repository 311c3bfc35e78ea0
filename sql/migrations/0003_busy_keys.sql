-- A claim reads a busy key from the event up to which all are finished. A replay opens an earlier one again.
-- Serves workers from version 1.

-- To build this index reads the whole outbox once, and producers wait meanwhile. Where that takes too long, create it
-- before by hand, with CONCURRENTLY.
CREATE INDEX IF NOT EXISTS idx_outbox_replayed ON outbox_events (ordering_key, seq)
    WHERE is_open AND stream_seq IS NOT NULL AND ordering_key IS NOT NULL;

COMMENT ON INDEX idx_outbox_replayed IS 'Replayed events that are not published again yet, by ordering key.';

-- Workers divide the ordering keys. The table is unlogged: what it says is true for seconds.
CREATE UNLOGGED TABLE sea_mq_shares (
    worker TEXT CONSTRAINT sea_mq_shares_pkey PRIMARY KEY,
    serves_at TIMESTAMPTZ NOT NULL
);

COMMENT ON TABLE sea_mq_shares IS 'Workers that serve the events with ordering keys, which they divide by a hash of the key.';
COMMENT ON COLUMN sea_mq_shares.worker IS 'Key of the session of the worker, or another ID.';
COMMENT ON COLUMN sea_mq_shares.serves_at IS 'Last time that the worker said so.';
