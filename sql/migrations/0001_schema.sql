-- The schema of release 1.0. It is frozen: sql/schema.sql has its SHA-256.

-- A worker knows one version of the schema. A later migration that older workers may continue on has a line such as
-- "-- Serves workers from version 1."; the version is that of the schema which a worker knows.

CREATE TABLE sea_mq_migrations (
    version INT PRIMARY KEY,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    serves_from INT CONSTRAINT chk_migrations_serves_from CHECK (serves_from >= 1 AND serves_from <= version)
);

COMMENT ON TABLE sea_mq_migrations IS 'Migrations that this schema has.';
COMMENT ON COLUMN sea_mq_migrations.version IS 'Number of the migration, which is the version of the schema.';
COMMENT ON COLUMN sea_mq_migrations.name IS 'Name of its file.';
COMMENT ON COLUMN sea_mq_migrations.sha256 IS 'SHA-256 of its file, in hexadecimal digits.';
COMMENT ON COLUMN sea_mq_migrations.applied_at IS 'Time at which it was applied.';
COMMENT ON COLUMN sea_mq_migrations.serves_from IS
    'Workers that know this version or a later one may run; null: none older than the migration.';

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

-- Triggers run in the writer's session. A function or operator in that session's search path whose types fit better
-- than the system's would be called instead, with the writer's rights. So each function searches only the system's
-- schema.
CREATE FUNCTION outbox_reject() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'outbox_events %: %', COALESCE(NEW.id, OLD.id), TG_ARGV[0]
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA,
              DETAIL = CASE WHEN TG_OP = 'UPDATE' THEN OLD.state || ' -> ' || NEW.state ELSE TG_OP END;
END $$;

CREATE FUNCTION outbox_defer() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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

CREATE FUNCTION outbox_reject_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
CREATE FUNCTION outbox_notify() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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

-- The service's own marks of handled messages, written in the transactions of their effects. inbox_messages cannot be
-- used for it: the worker updates its rows while the handler works, and would wait for the service's transaction.

CREATE TABLE handled_messages (
    message_id UUID PRIMARY KEY,
    handled_at TIMESTAMPTZ NOT NULL DEFAULT now()
);

COMMENT ON TABLE handled_messages IS 'Messages whose effect the service has committed (sea_mq_worker.idempotency).';
COMMENT ON COLUMN handled_messages.message_id IS 'UUID of the message.';
COMMENT ON COLUMN handled_messages.handled_at IS 'Start of the transaction of the effect.';

-- A mark is needed as long as the message's row: without the row, the inbox would hand the message over again anyway.
CREATE FUNCTION inbox_delete_marks() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('DELETE FROM %I.handled_messages h USING gone WHERE h.message_id = gone.message_id', TG_TABLE_SCHEMA);
    RETURN NULL;
END $$;

CREATE TRIGGER inbox_delete_marks AFTER DELETE ON inbox_messages
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION inbox_delete_marks();

COMMENT ON TRIGGER inbox_delete_marks ON inbox_messages IS 'Deletes the marks of deleted messages.';

-- The audit of operators: each of their changes leaves one row.

CREATE TABLE operator_actions (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    reason TEXT NOT NULL,
    selection JSONB NOT NULL,
    affected INT NOT NULL,
    outcome TEXT,
    CONSTRAINT chk_action_outcome CHECK (outcome IN ('done', 'refused', 'failed'))
);

COMMENT ON TABLE operator_actions IS 'Audit record of operator actions (Open Outbox, operator).';
COMMENT ON COLUMN operator_actions.id IS 'Number of the action.';
COMMENT ON COLUMN operator_actions.at IS 'Time at which it began.';
COMMENT ON COLUMN operator_actions.actor IS 'Person who did it; (page) after the name: on the page.';
COMMENT ON COLUMN operator_actions.action IS 'Name of the action, such as replay or prune_inbox.';
COMMENT ON COLUMN operator_actions.reason IS 'Reason that the person gave.';
COMMENT ON COLUMN operator_actions.selection IS 'Filter as the person gave it, and the progress.';
COMMENT ON COLUMN operator_actions.affected IS 'Number of events or messages that it changed.';
COMMENT ON COLUMN operator_actions.outcome IS 'done, refused or failed; null: it is running, or was interrupted.';

-- A role that may update an action cannot rewrite it: its counts only grow, and with its outcome it becomes immutable.
CREATE FUNCTION operator_actions_reject() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'operator_actions %: a record only grows until it has its outcome, and stays as it is then', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
END $$;

CREATE TRIGGER operator_actions_grow BEFORE UPDATE ON operator_actions FOR EACH ROW
    WHEN (
        OLD.outcome IS NOT NULL
        OR (OLD.id, OLD.at, OLD.actor, OLD.action, OLD.reason) IS DISTINCT FROM
           (NEW.id, NEW.at, NEW.actor, NEW.action, NEW.reason)
        OR NEW.affected < OLD.affected
        OR OLD.selection - '{progress,dropped}'::text[] IS DISTINCT FROM NEW.selection - '{progress,dropped}'::text[]
        OR OLD.selection #> '{progress,as_given}' IS DISTINCT FROM NEW.selection #> '{progress,as_given}'
        OR COALESCE((NEW.selection #>> '{progress,through}')::bigint, -1)
           < COALESCE((OLD.selection #>> '{progress,through}')::bigint, -1)
        OR NOT COALESCE(NEW.selection -> 'dropped', '[]') @> COALESCE(OLD.selection -> 'dropped', '[]')
    )
    EXECUTE FUNCTION operator_actions_reject();

COMMENT ON TRIGGER operator_actions_grow ON operator_actions IS
    'Refuses to change a record, except for its progress until it has an outcome.';

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

-- Functions for an outbox in daily partitions, after sql/partitions.sql has divided it. Ids are UUIDv7, so that a day
-- is a range of ids, and `id PRIMARY KEY` stays unique over all partitions. On an undivided table these functions
-- create and drop nothing.
-- The functions that create and drop run with their owner's rights. Nobody may call them until sql/roles.sql grants
-- it, and they search only the system's schema and this one.

CREATE FUNCTION outbox_id_from(at TIMESTAMPTZ) RETURNS UUID LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

COMMENT ON FUNCTION outbox_id_from IS 'Returns the lowest UUIDv7 of a time.';

CREATE FUNCTION outbox_id_time(id UUID) RETURNS TIMESTAMPTZ LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0::float8)
$$;

COMMENT ON FUNCTION outbox_id_time IS 'Returns the time in a UUIDv7.';

-- The relations that hold the rows: the table itself, or each partition with the times of its ids (null: no bound).
-- The default partition takes the rows outside all other ranges.
CREATE FUNCTION outbox_partitions()
RETURNS TABLE (partition TEXT, from_at TIMESTAMPTZ, until_at TIMESTAMPTZ, is_default BOOLEAN) LANGUAGE sql STABLE AS $$
    SELECT c.relname::text,
           outbox_id_time(substring(b.bounds FROM 'FROM \(''([0-9a-f-]+)''')::uuid),
           outbox_id_time(substring(b.bounds FROM 'TO \(''([0-9a-f-]+)''')::uuid),
           b.bounds IS NULL OR b.bounds = 'DEFAULT'
      FROM pg_class c
     CROSS JOIN LATERAL (SELECT pg_get_expr(c.relpartbound, c.oid) AS bounds) b
     WHERE c.oid = 'outbox_events'::regclass AND c.relkind <> 'p'
        OR c.oid IN (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = 'outbox_events'::regclass)
     ORDER BY 4, 2 NULLS FIRST
$$;

-- Grants the rights on one table also on another.
CREATE FUNCTION outbox_copy_rights(source REGCLASS, target REGCLASS) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    granted TEXT;
BEGIN
    FOR granted IN
        SELECT pg_catalog.format(
                   'GRANT %s%s ON %s TO %s%s', one.privilege_type, held.columns, target,
                   CASE one.grantee WHEN 0::oid THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(one.grantee)) END,
                   CASE WHEN one.is_grantable THEN ' WITH GRANT OPTION' END)
          FROM (SELECT '' AS columns, c.relacl AS rights FROM pg_class c WHERE c.oid = source
                 UNION ALL
                SELECT pg_catalog.format(' (%I)', a.attname), a.attacl FROM pg_attribute a
                 WHERE a.attrelid = source AND NOT a.attisdropped) held
         CROSS JOIN LATERAL aclexplode(held.rights) one
    LOOP
        EXECUTE granted;
    END LOOP;
END $$;

-- Creates one partition by name and bounds. Its columns, storage parameters and owner are those of another partition;
-- its rights, indexes and triggers those of the table. It is created separately and then attached, which waits only
-- for transactions that wrote to the default partition, and delays no producer.
CREATE FUNCTION outbox_add_partition(partition TEXT, bounds TEXT, alike REGCLASS) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    place TEXT;
    parameters TEXT;
    owner TEXT;
BEGIN
    SELECT pg_catalog.format('%s.%I', c.relnamespace::regnamespace, partition),
           'WITH (' || array_to_string(c.reloptions, ', ') || ')', pg_get_userbyid(c.relowner)
      INTO STRICT place, parameters, owner
      FROM pg_class c WHERE c.oid = alike;
    EXECUTE pg_catalog.format('CREATE TABLE %s (LIKE %s INCLUDING ALL EXCLUDING IDENTITY EXCLUDING INDEXES) %s',
                              place, alike, parameters);
    EXECUTE pg_catalog.format('CREATE TRIGGER outbox_keep_open_all BEFORE TRUNCATE ON %s'
                              ' EXECUTE FUNCTION outbox_reject_truncate()', place);
    PERFORM outbox_copy_rights('outbox_events'::regclass, place::regclass);
    EXECUTE pg_catalog.format('ALTER TABLE %s OWNER TO %I', place, owner);
    EXECUTE pg_catalog.format('ALTER TABLE outbox_events ATTACH PARTITION %s %s', place, bounds);
END $$;

-- Creates the missing partitions of today and of the given number of days after it, a year at most; returns their
-- names. A day of which the default partition has an event stays there. To attach a partition, PostgreSQL reads the
-- whole default partition while all users of the outbox wait; if that would take long, none is created. A busy
-- partition is left for the next call, and so are all while another session creates some.
CREATE FUNCTION outbox_make_partitions(days_ahead INT, read_bytes_max BIGINT DEFAULT 1000000000)
RETURNS SETOF TEXT LANGUAGE plpgsql STRICT SECURITY DEFINER SET lock_timeout = '500ms' AS $$
DECLARE
    remainder REGCLASS := (
        SELECT nullif(t.partdefid, 0::oid) FROM pg_partitioned_table t WHERE t.partrelid = 'outbox_events'::regclass);
    day TIMESTAMPTZ;
    name TEXT;
    is_taken BOOLEAN;
BEGIN
    IF remainder IS NULL OR pg_relation_size(remainder) > read_bytes_max
       OR NOT pg_try_advisory_xact_lock(7180, 'outbox_events'::regclass::oid::int) THEN
        RETURN;
    END IF;
    FOR ahead IN 0 .. least(days_ahead, 365) LOOP
        day := date_trunc('day', now(), 'UTC') + ahead::float8 * interval '24 hours';
        CONTINUE WHEN EXISTS (
            SELECT FROM outbox_partitions() p
             WHERE NOT p.is_default AND coalesce(p.from_at, '-infinity') < day + interval '24 hours'
               AND coalesce(p.until_at, 'infinity') > day);
        EXECUTE pg_catalog.format('SELECT EXISTS (SELECT FROM %s WHERE id >= $1 AND id < $2)', remainder)
           INTO is_taken USING outbox_id_from(day), outbox_id_from(day + interval '24 hours');
        CONTINUE WHEN is_taken;
        name := 'outbox_events_' || to_char(day AT TIME ZONE 'UTC', 'YYYYMMDD');
        BEGIN
            PERFORM outbox_add_partition(
                name, pg_catalog.format('FOR VALUES FROM (%L) TO (%L)', outbox_id_from(day),
                                        outbox_id_from(day + interval '24 hours')), remainder);
        EXCEPTION WHEN lock_not_available THEN
            RETURN;
        END;
        RETURN NEXT name;
    END LOOP;
END $$;

-- Drops a partition if all its ids are older than a time and all its events were published before it; otherwise
-- returns the reason. The partition is read without blocking others. Under the lock, an index shows that no event in
-- it is open, and the records of replays show that none was put back since and published again. The first lock ends
-- an autovacuum, so that nobody else waits for it.
CREATE FUNCTION outbox_drop_partition(partition TEXT, before TIMESTAMPTZ,
                                      OUT dropped BOOLEAN, OUT reason TEXT, OUT events BIGINT, OUT bytes BIGINT)
LANGUAGE plpgsql STRICT SECURITY DEFINER SET lock_timeout = '2s' AS $$
DECLARE
    place REGCLASS;
    until_at TIMESTAMPTZ;
    replayed BIGINT := (SELECT sum(a.affected) FROM operator_actions a WHERE a.action = 'replay');
    unpublished BIGINT;
    last_at TIMESTAMPTZ;
BEGIN
    dropped := false;
    SELECT c.oid, p.until_at INTO place, until_at
      FROM outbox_partitions() p
      JOIN pg_inherits i ON i.inhparent = 'outbox_events'::regclass
      JOIN pg_class c ON c.oid = i.inhrelid AND c.relname = p.partition
     WHERE p.partition = outbox_drop_partition.partition AND NOT p.is_default;
    IF place IS NULL THEN
        reason := 'it is no partition of a range of ids';
        RETURN;
    END IF;
    EXECUTE pg_catalog.format(
        'SELECT count(*), count(*) FILTER (WHERE published_at IS NULL), max(published_at) FROM %s', place)
       INTO events, unpublished, last_at;
    bytes := pg_total_relation_size(place);
    reason := CASE
        WHEN current_setting('transaction_isolation') <> 'read committed'
            THEN 'the transaction would not see what is put back meanwhile; it must be read committed'
        WHEN coalesce(until_at, 'infinity') > before THEN 'its range of ids is not over by then'
        WHEN unpublished > 0 THEN pg_catalog.format('%s of its events are not published', unpublished)
        WHEN last_at >= before THEN 'some of its events were published since' END;
    IF reason IS NOT NULL THEN
        RETURN;
    END IF;
    BEGIN
        EXECUTE pg_catalog.format('LOCK TABLE %s IN SHARE UPDATE EXCLUSIVE MODE', place);
        PERFORM set_config('lock_timeout', '500ms', true);
        LOCK TABLE ONLY outbox_events IN ACCESS EXCLUSIVE MODE;
        EXECUTE pg_catalog.format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', place);
        EXECUTE pg_catalog.format('SELECT count(*) FROM %s WHERE published_at IS NULL', place) INTO unpublished;
        IF unpublished > 0
           OR replayed IS DISTINCT FROM (SELECT sum(a.affected) FROM operator_actions a WHERE a.action = 'replay') THEN
            reason := 'events have been put back meanwhile';
            RETURN;
        END IF;
        EXECUTE pg_catalog.format('DROP TABLE %s', place);
    EXCEPTION WHEN lock_not_available THEN
        reason := 'other sessions are at work on the outbox; try again';
        RETURN;
    END;
    dropped := true;
END $$;

DO $$
DECLARE
    one REGPROCEDURE;
BEGIN
    FOREACH one IN ARRAY ARRAY[
        'outbox_partitions()', 'outbox_copy_rights(regclass, regclass)', 'outbox_add_partition(text, text, regclass)',
        'outbox_make_partitions(int, bigint)', 'outbox_drop_partition(text, timestamptz)']::regprocedure[]
    LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', one, current_schema());
    END LOOP;
END $$;

COMMENT ON FUNCTION outbox_partitions IS 'Returns the partitions with the times of their IDs, or the table itself.';
COMMENT ON FUNCTION outbox_copy_rights IS 'Grants on the second table the rights that exist on the first.';
COMMENT ON FUNCTION outbox_add_partition IS 'Creates one partition and attaches it.';
COMMENT ON FUNCTION outbox_make_partitions IS
    'Creates the missing partitions of today and the given number of days after it; returns their names.';
COMMENT ON FUNCTION outbox_drop_partition IS
    'Drops a partition whose events were all published before the given time, or returns the reason why not.';

REVOKE ALL ON FUNCTION outbox_copy_rights, outbox_add_partition, outbox_make_partitions, outbox_drop_partition
  FROM PUBLIC;
