-- The outbox: SDS-047's outbox_events with Open Outbox's lifecycle. A producer that inserts only
-- SDS-047's columns works. Every invariant, transition and immutable column is enforced here, so that
-- SQL written by hand cannot break them either.

CREATE TABLE outbox_events (
    -- the producer's columns, which are immutable; SDS-047's columns come first
    id UUID PRIMARY KEY,
    aggregate_type TEXT NOT NULL,
    aggregate_id TEXT NOT NULL,
    event_type TEXT NOT NULL,
    event_version INT NOT NULL DEFAULT 1,
    payload JSONB NOT NULL,
    occurred_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    correlation_id UUID,
    causation_id UUID,
    -- insert order; the default cache of 1 must stay, or numbers are handed out in blocks
    seq BIGINT GENERATED ALWAYS AS IDENTITY,
    created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    partition_key TEXT,
    ordering_key TEXT,
    headers JSONB,
    metadata JSONB,
    -- Size of the event for a worker, by which a claim is bounded without reading large values. It is computed at the
    -- insert, because the length of a compressed value's text is unknown later.
    bytes INT NOT NULL GENERATED ALWAYS AS (least(
        octet_length(payload::text)::bigint + coalesce(octet_length(headers::text), 0)
        + coalesce(octet_length(metadata::text), 0) + octet_length(aggregate_type) + octet_length(aggregate_id)
        + octet_length(event_type) + coalesce(octet_length(partition_key), 0), 2147483647)::int) STORED,
    -- mutable columns last: an update on the same page logs only the changed tail of the row
    available_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    -- Keeps its value over PENDING -> CLAIMED, so that indexes may filter on it and claims stay heap-only
    -- updates. No index may mention state, claimed_at, claimed_by, first_attempt_at or publish_attempts.
    is_open BOOLEAN GENERATED ALWAYS AS (state IN ('PENDING', 'CLAIMED')) STORED,
    publish_attempts INT NOT NULL DEFAULT 0,
    failures INT NOT NULL DEFAULT 0,
    first_attempt_at TIMESTAMPTZ,
    stream TEXT,
    stream_seq BIGINT,
    state TEXT NOT NULL DEFAULT 'PENDING',
    claimed_at TIMESTAMPTZ,
    claimed_by TEXT,
    published_at TIMESTAMPTZ,
    publish_error TEXT,
    CONSTRAINT chk_outbox_state CHECK (state IN ('PENDING', 'CLAIMED', 'PUBLISHED', 'DEAD')),
    CONSTRAINT chk_outbox_claimed CHECK (
        (state = 'CLAIMED') = (claimed_at IS NOT NULL) AND (state = 'CLAIMED') = (claimed_by IS NOT NULL)
    ),
    CONSTRAINT chk_outbox_published CHECK ((state = 'PUBLISHED') = (published_at IS NOT NULL)),
    CONSTRAINT chk_outbox_attempts CHECK (publish_attempts >= 0 AND failures >= 0)
) WITH (
    -- room on every page for the new version that a claim writes
    fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

COMMENT ON TABLE outbox_events IS 'Events to publish (SDS-047 2.1). A producer inserts an event in the transaction that changes its data.';
COMMENT ON COLUMN outbox_events.id IS 'UUID of the event, preferably a UUIDv7. It becomes the message ID.';
COMMENT ON COLUMN outbox_events.aggregate_type IS 'Kind of the thing that changed, such as order.';
COMMENT ON COLUMN outbox_events.aggregate_id IS 'ID of the thing that changed.';
COMMENT ON COLUMN outbox_events.event_type IS 'Type of the event, such as order.paid; part of the subject.';
COMMENT ON COLUMN outbox_events.event_version IS 'Version of the payload''s format; part of the subject.';
COMMENT ON COLUMN outbox_events.payload IS 'Body of the message.';
COMMENT ON COLUMN outbox_events.occurred_at IS 'Time of the change; at most a minute in the future.';
COMMENT ON COLUMN outbox_events.correlation_id IS 'ID that all events of one request share.';
COMMENT ON COLUMN outbox_events.causation_id IS 'ID of the message or event that caused this one.';
COMMENT ON COLUMN outbox_events.seq IS 'Insert order, which is the order of publishing within an ordering key.';
COMMENT ON COLUMN outbox_events.created_at IS 'Time of the insert.';
COMMENT ON COLUMN outbox_events.partition_key IS 'Routing hint, sent as ce-partitionkey. It has no influence on order.';
COMMENT ON COLUMN outbox_events.ordering_key IS
    'Events that share it are published in insert order. At most 2048 bytes; null: no order.';
COMMENT ON COLUMN outbox_events.headers IS 'Headers that are delivered with the message.';
COMMENT ON COLUMN outbox_events.metadata IS 'Stays in the database; a trace context in it becomes headers.';
COMMENT ON COLUMN outbox_events.bytes IS 'Bytes of payload, headers, metadata and names, as text.';
COMMENT ON COLUMN outbox_events.available_at IS 'The event is not published before this time.';
COMMENT ON COLUMN outbox_events.is_open IS 'Whether the event is PENDING or CLAIMED.';
COMMENT ON COLUMN outbox_events.publish_attempts IS 'Claims in this lifecycle, counted before the attempt.';
COMMENT ON COLUMN outbox_events.failures IS
    'Attempts that failed by the event''s own fault, or ended with their worker. Their number decides on DEAD.';
COMMENT ON COLUMN outbox_events.first_attempt_at IS 'Time of the first claim in this lifecycle; null: none yet.';
COMMENT ON COLUMN outbox_events.stream IS 'Stream that stored the event.';
COMMENT ON COLUMN outbox_events.stream_seq IS
    'Sequence in that stream. A replay keeps it, to distinguish the new copy from the old one.';
COMMENT ON COLUMN outbox_events.state IS 'PENDING, CLAIMED, PUBLISHED or DEAD.';
COMMENT ON COLUMN outbox_events.claimed_at IS 'Time of the claim; null unless CLAIMED.';
COMMENT ON COLUMN outbox_events.claimed_by IS
    'Worker that holds the claim, and the claim''s token; null unless CLAIMED.';
COMMENT ON COLUMN outbox_events.published_at IS 'Time of the stream''s acknowledgement; null unless PUBLISHED.';
COMMENT ON COLUMN outbox_events.publish_error IS 'Last error in this lifecycle.';

-- SDS-047's indexes
CREATE INDEX idx_outbox_unpublished ON outbox_events (occurred_at) WHERE published_at IS NULL;
CREATE INDEX idx_outbox_correlation ON outbox_events (correlation_id);
-- Indexes of claims, one pair for each lane, so that no lane reads past the other's backlog. Events that have
-- failed in this lifecycle have an index of their own and get a share of each claim: they can neither hide the
-- others nor starve.
CREATE INDEX idx_outbox_due ON outbox_events (available_at, seq)
    WHERE is_open AND ordering_key IS NULL AND publish_error IS NULL;
CREATE INDEX idx_outbox_retry ON outbox_events (available_at, seq)
    WHERE is_open AND ordering_key IS NULL AND publish_error IS NOT NULL;
CREATE INDEX idx_outbox_due_ordered ON outbox_events (available_at, seq)
    WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NULL;
CREATE INDEX idx_outbox_retry_ordered ON outbox_events (available_at, seq)
    WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NOT NULL;
-- the runs of an ordering key, and the dead events that may hold it
CREATE INDEX idx_outbox_ordering ON outbox_events (ordering_key, seq) WHERE is_open AND ordering_key IS NOT NULL;
CREATE INDEX idx_outbox_dead ON outbox_events (ordering_key, seq) WHERE NOT is_open AND published_at IS NULL;

COMMENT ON INDEX idx_outbox_unpublished IS 'SDS-047: the depth and the age of the oldest event.';
COMMENT ON INDEX idx_outbox_correlation IS 'SDS-047: all events of one request.';
COMMENT ON INDEX idx_outbox_due IS 'Claims of the lane without ordering keys.';
COMMENT ON INDEX idx_outbox_retry IS
    'Claims of events without an ordering key that failed before. Each claim reserves a share for them.';
COMMENT ON INDEX idx_outbox_due_ordered IS 'Claims of the lane with ordering keys.';
COMMENT ON INDEX idx_outbox_retry_ordered IS
    'Claims of events with an ordering key that failed before. Each claim reserves a share for them.';
COMMENT ON INDEX idx_outbox_ordering IS 'The run of an ordering key.';
COMMENT ON INDEX idx_outbox_dead IS 'DEAD events; with an ordering key, those that may hold it.';

CREATE FUNCTION outbox_reject() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'outbox_events %: %', COALESCE(NEW.id, OLD.id), TG_ARGV[0]
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA,
              DETAIL = CASE WHEN TG_OP = 'UPDATE' THEN OLD.state || ' -> ' || NEW.state ELSE TG_OP END;
END $$;

CREATE FUNCTION outbox_defer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.available_at := GREATEST(NEW.available_at, NEW.occurred_at);
    RETURN NEW;
END $$;

-- POL-047-001; before the columns' own NOT NULL, whose message could not carry the policy's code
CREATE TRIGGER outbox_a_required BEFORE INSERT ON outbox_events FOR EACH ROW
    WHEN (NEW.id IS NULL OR NEW.event_type IS NULL)
    EXECUTE FUNCTION outbox_reject('INVALID_OUTBOX: id and event_type are required (POL-047-001)');

-- POL-047-002, with SDS-047's minute of tolerance. A trigger, because a CHECK with NOW() would be evaluated again
-- at every update and fail there after the clock stepped back.
CREATE TRIGGER chk_occurred_not_future BEFORE INSERT ON outbox_events FOR EACH ROW
    WHEN (NEW.occurred_at > NOW() + INTERVAL '1 minute')
    EXECUTE FUNCTION outbox_reject('FUTURE_EVENT: occurred_at is in the future (POL-047-002)');

-- A time that RFC 3339 cannot express could never be published, and drivers could not read it. An example is the zero
-- time of some languages, the begin of year 1, in a zone east of Greenwich. available_at may be infinite.
CREATE TRIGGER outbox_calendar BEFORE INSERT ON outbox_events FOR EACH ROW
    WHEN (LEAST(NEW.occurred_at, NEW.available_at, NEW.created_at) < '0001-01-01 00:00:00+00'
          OR GREATEST(NEW.created_at, NULLIF(NEW.available_at, 'infinity')) >= '9999-12-31 00:00:00+00')
    EXECUTE FUNCTION outbox_reject('INVALID_OUTBOX: a time is not within the years 1 to 9999');

-- A page of an index has room for little more; this error is clearer than PostgreSQL's.
CREATE TRIGGER outbox_key_length BEFORE INSERT ON outbox_events FOR EACH ROW
    WHEN (octet_length(NEW.ordering_key) > 2048)
    EXECUTE FUNCTION outbox_reject('INVALID_OUTBOX: ordering_key is longer than 2048 bytes; use a hash of it');

-- An event within the tolerance is published after its time.
CREATE TRIGGER outbox_not_yet BEFORE INSERT ON outbox_events FOR EACH ROW
    WHEN (NEW.occurred_at > NEW.available_at)
    EXECUTE FUNCTION outbox_defer();

CREATE TRIGGER outbox_initial AFTER INSERT ON outbox_events FOR EACH ROW
    WHEN (NEW.state <> 'PENDING' OR NEW.publish_attempts <> 0 OR NEW.failures <> 0)
    EXECUTE FUNCTION outbox_reject('an event starts PENDING and without attempts');

-- AFTER, with a WHEN that is true only on violation and a column list that a valid update never names:
-- valid updates pay next to nothing.
CREATE TRIGGER outbox_immutable AFTER UPDATE OF
    id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id,
    causation_id, seq, created_at, partition_key, ordering_key, headers, metadata
    ON outbox_events FOR EACH ROW
    WHEN (
        (OLD.id, OLD.aggregate_type, OLD.aggregate_id, OLD.event_type, OLD.event_version, OLD.occurred_at,
         OLD.correlation_id, OLD.causation_id, OLD.seq, OLD.created_at, OLD.partition_key, OLD.ordering_key,
         OLD.headers, OLD.metadata, OLD.payload)
        IS DISTINCT FROM
        (NEW.id, NEW.aggregate_type, NEW.aggregate_id, NEW.event_type, NEW.event_version, NEW.occurred_at,
         NEW.correlation_id, NEW.causation_id, NEW.seq, NEW.created_at, NEW.partition_key, NEW.ordering_key,
         NEW.headers, NEW.metadata, NEW.payload)
    )
    EXECUTE FUNCTION outbox_reject('immutable columns do not change');

CREATE TRIGGER outbox_transition AFTER UPDATE ON outbox_events FOR EACH ROW
    WHEN (
        CASE OLD.state
            WHEN 'PENDING' THEN
                NEW.state NOT IN ('PENDING', 'CLAIMED')
                OR NEW.publish_attempts < OLD.publish_attempts
                OR (NEW.state = 'CLAIMED'
                    AND (NEW.publish_attempts <= OLD.publish_attempts OR OLD.available_at > NOW()))
            WHEN 'CLAIMED' THEN
                NEW.publish_attempts < OLD.publish_attempts
                OR (NEW.state = 'CLAIMED'
                    AND (NEW.claimed_by IS DISTINCT FROM OLD.claimed_by OR NEW.claimed_at < OLD.claimed_at))
            WHEN 'PUBLISHED' THEN
                NEW.state NOT IN ('PUBLISHED', 'PENDING')
                OR (NEW.state = 'PUBLISHED'
                    AND (NEW.published_at IS DISTINCT FROM OLD.published_at
                         OR NEW.publish_attempts < OLD.publish_attempts))
            ELSE
                NEW.state NOT IN ('DEAD', 'PENDING')
                OR (NEW.state = 'DEAD' AND NEW.publish_attempts < OLD.publish_attempts)
        END
    )
    EXECUTE FUNCTION outbox_reject('this transition is not in the lifecycle');

-- A careless DELETE or TRUNCATE cannot lose an unpublished event.
CREATE TRIGGER outbox_keep_open AFTER DELETE ON outbox_events FOR EACH ROW
    WHEN (OLD.is_open)
    EXECUTE FUNCTION outbox_reject('an event that is not published or dead cannot be deleted');

CREATE FUNCTION outbox_reject_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    has_open BOOLEAN;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM %I.%I WHERE is_open)', TG_TABLE_SCHEMA, TG_TABLE_NAME) INTO has_open;
    IF has_open THEN
        RAISE EXCEPTION 'outbox_events: there are events that are not published or dead'
            USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER outbox_keep_open_all BEFORE TRUNCATE ON outbox_events FOR EACH STATEMENT
    EXECUTE FUNCTION outbox_reject_truncate();

-- Wake an idle relay. NOTIFY serialises the commits of all its senders, so it is sent only while a relay waits for it
-- and therefore holds the advisory lock exclusively. A producer that gets the lock shared sends nothing. It commits
-- before a relay can take the lock, so the claim that the relay makes after taking it finds the events.
-- Events with an ordering key and those without have a lock each, and the notification names the kind of the events.
-- The channel is named by a hash, because a channel's name must be shorter than a schema's name may be.
-- A transaction that is to be prepared must not notify: with SET LOCAL sea_mq.notify = off the trigger sends nothing
-- and takes no lock, and a relay finds the events when it polls.
CREATE FUNCTION outbox_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('sea_mq.notify', true) IS NOT DISTINCT FROM 'off' THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM added WHERE ordering_key IS NULL)
       AND NOT pg_try_advisory_xact_lock_shared(7177, hashtext(TG_TABLE_SCHEMA)) THEN
        PERFORM pg_notify('outbox_events.' || hashtext(TG_TABLE_SCHEMA), 'unkeyed');
    END IF;
    IF EXISTS (SELECT FROM added WHERE ordering_key IS NOT NULL)
       AND NOT pg_try_advisory_xact_lock_shared(7179, hashtext(TG_TABLE_SCHEMA)) THEN
        PERFORM pg_notify('outbox_events.' || hashtext(TG_TABLE_SCHEMA), 'keyed');
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER outbox_wakeup AFTER INSERT ON outbox_events REFERENCING NEW TABLE AS added FOR EACH STATEMENT
    EXECUTE FUNCTION outbox_notify();

COMMENT ON TRIGGER outbox_a_required ON outbox_events IS 'Refuses an event without an ID or a type (POL-047-001).';
COMMENT ON TRIGGER chk_occurred_not_future ON outbox_events IS 'Refuses an event of the future (POL-047-002).';
COMMENT ON TRIGGER outbox_calendar ON outbox_events IS
    'Refuses a time outside of the years 1 to 9999, which RFC 3339 cannot express.';
COMMENT ON TRIGGER outbox_key_length ON outbox_events IS 'Refuses an ordering key that an index has no room for.';
COMMENT ON TRIGGER outbox_not_yet ON outbox_events IS
    'Defers an event that occurs within the next minute until it has occurred.';
COMMENT ON TRIGGER outbox_initial ON outbox_events IS
    'Refuses an event that does not start PENDING and without attempts.';
COMMENT ON TRIGGER outbox_immutable ON outbox_events IS 'Refuses a change of what the producer wrote.';
COMMENT ON TRIGGER outbox_transition ON outbox_events IS 'Refuses a change of state that is not in the lifecycle.';
COMMENT ON TRIGGER outbox_keep_open ON outbox_events IS 'Refuses to delete an event that is not PUBLISHED or DEAD.';
COMMENT ON TRIGGER outbox_keep_open_all ON outbox_events IS
    'Refuses to truncate while an event is not PUBLISHED or DEAD.';
COMMENT ON TRIGGER outbox_wakeup ON outbox_events IS 'Wakes an idle worker.';
