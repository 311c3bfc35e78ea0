--
-- PostgreSQL database dump
--


-- Dumped from database version 18.6
-- Dumped by pg_dump version 18.6

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: inbox_delete_marks(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.inbox_delete_marks() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    EXECUTE format('DELETE FROM %I.handled_messages h USING gone WHERE h.message_id = gone.message_id', TG_TABLE_SCHEMA);
    RETURN NULL;
END $$;


--
-- Name: operator_actions_reject(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.operator_actions_reject() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RAISE EXCEPTION 'operator_actions %: a record only grows until it has its outcome, and stays as it is then', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
END $$;


--
-- Name: outbox_add_partition(text, text, regclass); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.outbox_add_partition(partition text, bounds text, alike regclass) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION outbox_add_partition(partition text, bounds text, alike regclass); Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON FUNCTION public.outbox_add_partition(partition text, bounds text, alike regclass) IS 'Creates one partition and attaches it.';


--
-- Name: outbox_copy_rights(regclass, regclass); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.outbox_copy_rights(source regclass, target regclass) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION outbox_copy_rights(source regclass, target regclass); Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON FUNCTION public.outbox_copy_rights(source regclass, target regclass) IS 'Grants on the second table the rights that exist on the first.';


--
-- Name: outbox_defer(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.outbox_defer() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    NEW.available_at := GREATEST(NEW.available_at, NEW.occurred_at);
    RETURN NEW;
END $$;


--
-- Name: outbox_drop_partition(text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.outbox_drop_partition(partition text, before timestamp with time zone, OUT dropped boolean, OUT reason text, OUT events bigint, OUT bytes bigint) RETURNS record
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET lock_timeout TO '2s'
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION outbox_drop_partition(partition text, before timestamp with time zone, OUT dropped boolean, OUT reason text, OUT events bigint, OUT bytes bigint); Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON FUNCTION public.outbox_drop_partition(partition text, before timestamp with time zone, OUT dropped boolean, OUT reason text, OUT events bigint, OUT bytes bigint) IS 'Drops a partition whose events were all published before the given time, or returns the reason why not.';


--
-- Name: outbox_id_from(timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.outbox_id_from(at timestamp with time zone) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;


--
-- Name: FUNCTION outbox_id_from(at timestamp with time zone); Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON FUNCTION public.outbox_id_from(at timestamp with time zone) IS 'Returns the lowest UUIDv7 of a time.';


--
-- Name: outbox_id_time(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.outbox_id_time(id uuid) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0::float8)
$$;


--
-- Name: FUNCTION outbox_id_time(id uuid); Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON FUNCTION public.outbox_id_time(id uuid) IS 'Returns the time in a UUIDv7.';


--
-- Name: outbox_make_partitions(integer, bigint); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.outbox_make_partitions(days_ahead integer, read_bytes_max bigint DEFAULT 1000000000) RETURNS SETOF text
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET lock_timeout TO '500ms'
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $_$
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
END $_$;


--
-- Name: FUNCTION outbox_make_partitions(days_ahead integer, read_bytes_max bigint); Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON FUNCTION public.outbox_make_partitions(days_ahead integer, read_bytes_max bigint) IS 'Creates the missing partitions of today and the given number of days after it; returns their names.';


--
-- Name: outbox_notify(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.outbox_notify() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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


--
-- Name: outbox_partitions(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.outbox_partitions() RETURNS TABLE(partition text, from_at timestamp with time zone, until_at timestamp with time zone, is_default boolean)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
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


--
-- Name: FUNCTION outbox_partitions(); Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON FUNCTION public.outbox_partitions() IS 'Returns the partitions with the times of their IDs, or the table itself.';


--
-- Name: outbox_reject(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.outbox_reject() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RAISE EXCEPTION 'outbox_events %: %', COALESCE(NEW.id, OLD.id), TG_ARGV[0]
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA,
              DETAIL = CASE WHEN TG_OP = 'UPDATE' THEN OLD.state || ' -> ' || NEW.state ELSE TG_OP END;
END $$;


--
-- Name: outbox_reject_truncate(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.outbox_reject_truncate() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: handled_messages; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.handled_messages (
    message_id uuid NOT NULL,
    handled_at timestamp with time zone DEFAULT now() NOT NULL
);


--
-- Name: TABLE handled_messages; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TABLE public.handled_messages IS 'Messages whose effect the service has committed (sea_mq_worker.producer.once).';


--
-- Name: COLUMN handled_messages.message_id; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.handled_messages.message_id IS 'UUID of the message.';


--
-- Name: COLUMN handled_messages.handled_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.handled_messages.handled_at IS 'Start of the transaction of the effect.';


--
-- Name: inbox_messages; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.inbox_messages (
    message_id uuid NOT NULL,
    subject text NOT NULL,
    received_at timestamp with time zone DEFAULT now() NOT NULL,
    processed_at timestamp with time zone,
    attempts integer DEFAULT 0 NOT NULL,
    last_error text,
    consumer text,
    stream text,
    stream_seq bigint,
    content_hash bytea,
    locked_until timestamp with time zone,
    locked_by text,
    reply text,
    dead_letter_reason text,
    dead_letter_begun_at timestamp with time zone,
    dead_lettered_at timestamp with time zone,
    CONSTRAINT "INVALID_TIMESTAMP" CHECK (((processed_at IS NULL) OR (processed_at >= received_at))),
    CONSTRAINT chk_inbox_attempts CHECK ((attempts >= 0)),
    CONSTRAINT chk_inbox_dead_letter CHECK (((dead_lettered_at IS NULL) OR ((dead_letter_reason IS NOT NULL) AND (dead_letter_begun_at IS NOT NULL)))),
    CONSTRAINT chk_inbox_lease CHECK (((locked_until IS NULL) = (locked_by IS NULL))),
    CONSTRAINT chk_inbox_settled_once CHECK (((processed_at IS NULL) OR (dead_lettered_at IS NULL)))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='50000', autovacuum_vacuum_cost_delay='0', vacuum_truncate=off);


--
-- Name: TABLE inbox_messages; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TABLE public.inbox_messages IS 'Received messages and their results (SDS-047 2.2). The row of a processed message prevents a second handling.';


--
-- Name: COLUMN inbox_messages.message_id; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.message_id IS 'UUID of the message: the event''s ID.';


--
-- Name: COLUMN inbox_messages.subject; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.subject IS 'Subject of the message.';


--
-- Name: COLUMN inbox_messages.received_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.received_at IS 'Time of the first delivery.';


--
-- Name: COLUMN inbox_messages.processed_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.processed_at IS 'Time of the handler''s success; null: none yet.';


--
-- Name: COLUMN inbox_messages.attempts; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.attempts IS 'Leases, counted before the handler is called. An attempt that was given back is subtracted.';


--
-- Name: COLUMN inbox_messages.last_error; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.last_error IS 'Error of the last attempt, or reason and detail of the dead letter.';


--
-- Name: COLUMN inbox_messages.consumer; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.consumer IS 'Durable consumer that delivered it last.';


--
-- Name: COLUMN inbox_messages.stream; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.stream IS 'Stream that it came from.';


--
-- Name: COLUMN inbox_messages.stream_seq; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.stream_seq IS 'Sequence in that stream.';


--
-- Name: COLUMN inbox_messages.content_hash; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.content_hash IS 'SHA-256 over subject and body. The same ID with other content is a conflict.';


--
-- Name: COLUMN inbox_messages.locked_until; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.locked_until IS 'End of the lease; null: no worker holds one.';


--
-- Name: COLUMN inbox_messages.locked_by; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.locked_by IS 'Token of the lease; null: no worker holds one.';


--
-- Name: COLUMN inbox_messages.reply; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.reply IS 'Reply subject of the leased delivery, by which the server delivers it again if the worker dies.';


--
-- Name: COLUMN inbox_messages.dead_letter_reason; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.dead_letter_reason IS 'Reason of the dead letter, recorded before it is published (CMD-052).';


--
-- Name: COLUMN inbox_messages.dead_letter_begun_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.dead_letter_begun_at IS 'Time from which on the dead letter may be in its stream.';


--
-- Name: COLUMN inbox_messages.dead_lettered_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.inbox_messages.dead_lettered_at IS 'Time at which the dead-letter stream had acknowledged, or an operator gave the message up.';


--
-- Name: operator_actions; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.operator_actions (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    reason text NOT NULL,
    selection jsonb NOT NULL,
    affected integer NOT NULL,
    outcome text,
    CONSTRAINT chk_action_outcome CHECK ((outcome = ANY (ARRAY['done'::text, 'refused'::text, 'failed'::text])))
);


--
-- Name: TABLE operator_actions; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TABLE public.operator_actions IS 'Audit record of operator actions (Open Outbox, operator).';


--
-- Name: COLUMN operator_actions.id; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.operator_actions.id IS 'Number of the action.';


--
-- Name: COLUMN operator_actions.at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.operator_actions.at IS 'Time at which it began.';


--
-- Name: COLUMN operator_actions.actor; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.operator_actions.actor IS 'Person who did it; (page) after the name: on the page.';


--
-- Name: COLUMN operator_actions.action; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.operator_actions.action IS 'Name of the action, such as replay or prune_inbox.';


--
-- Name: COLUMN operator_actions.reason; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.operator_actions.reason IS 'Reason that the person gave.';


--
-- Name: COLUMN operator_actions.selection; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.operator_actions.selection IS 'Filter as the person gave it, and the progress.';


--
-- Name: COLUMN operator_actions.affected; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.operator_actions.affected IS 'Number of events or messages that it changed.';


--
-- Name: COLUMN operator_actions.outcome; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.operator_actions.outcome IS 'done, refused or failed; null: it is running, or was interrupted.';


--
-- Name: operator_actions_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.operator_actions ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.operator_actions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: outbox_events; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.outbox_events (
    id uuid NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    event_version integer DEFAULT 1 NOT NULL,
    payload jsonb NOT NULL,
    occurred_at timestamp with time zone DEFAULT now() NOT NULL,
    correlation_id uuid,
    causation_id uuid,
    seq bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    partition_key text,
    ordering_key text,
    headers jsonb,
    metadata jsonb,
    bytes integer GENERATED ALWAYS AS ((LEAST((((((((octet_length((payload)::text))::bigint + COALESCE(octet_length((headers)::text), 0)) + COALESCE(octet_length((metadata)::text), 0)) + octet_length(aggregate_type)) + octet_length(aggregate_id)) + octet_length(event_type)) + COALESCE(octet_length(partition_key), 0)), (2147483647)::bigint))::integer) STORED NOT NULL,
    available_at timestamp with time zone DEFAULT now() NOT NULL,
    is_open boolean GENERATED ALWAYS AS ((state = ANY (ARRAY['PENDING'::text, 'CLAIMED'::text]))) STORED,
    publish_attempts integer DEFAULT 0 NOT NULL,
    failures integer DEFAULT 0 NOT NULL,
    first_attempt_at timestamp with time zone,
    stream text,
    stream_seq bigint,
    state text DEFAULT 'PENDING'::text NOT NULL,
    claimed_at timestamp with time zone,
    claimed_by text,
    published_at timestamp with time zone,
    publish_error text,
    CONSTRAINT chk_outbox_attempts CHECK (((publish_attempts >= 0) AND (failures >= 0))),
    CONSTRAINT chk_outbox_claimed CHECK ((((state = 'CLAIMED'::text) = (claimed_at IS NOT NULL)) AND ((state = 'CLAIMED'::text) = (claimed_by IS NOT NULL)))),
    CONSTRAINT chk_outbox_published CHECK (((state = 'PUBLISHED'::text) = (published_at IS NOT NULL))),
    CONSTRAINT chk_outbox_state CHECK ((state = ANY (ARRAY['PENDING'::text, 'CLAIMED'::text, 'PUBLISHED'::text, 'DEAD'::text])))
)
WITH (fillfactor='45', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='50000', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='100000', autovacuum_vacuum_cost_delay='0', vacuum_truncate=off);


--
-- Name: TABLE outbox_events; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TABLE public.outbox_events IS 'Events to publish (SDS-047 2.1). A producer inserts an event in the transaction that changes its data.';


--
-- Name: COLUMN outbox_events.id; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.id IS 'UUID of the event, preferably a UUIDv7. It becomes the message ID.';


--
-- Name: COLUMN outbox_events.aggregate_type; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.aggregate_type IS 'Kind of the thing that changed, such as order.';


--
-- Name: COLUMN outbox_events.aggregate_id; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.aggregate_id IS 'ID of the thing that changed.';


--
-- Name: COLUMN outbox_events.event_type; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.event_type IS 'Type of the event, such as order.paid; part of the subject.';


--
-- Name: COLUMN outbox_events.event_version; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.event_version IS 'Version of the payload''s format; part of the subject.';


--
-- Name: COLUMN outbox_events.payload; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.payload IS 'Body of the message.';


--
-- Name: COLUMN outbox_events.occurred_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.occurred_at IS 'Time of the change; at most a minute in the future.';


--
-- Name: COLUMN outbox_events.correlation_id; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.correlation_id IS 'ID that all events of one request share.';


--
-- Name: COLUMN outbox_events.causation_id; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.causation_id IS 'ID of the message or event that caused this one.';


--
-- Name: COLUMN outbox_events.seq; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.seq IS 'Insert order, which is the order of publishing within an ordering key.';


--
-- Name: COLUMN outbox_events.created_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.created_at IS 'Time of the insert.';


--
-- Name: COLUMN outbox_events.partition_key; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.partition_key IS 'Routing hint, sent as ce-partitionkey. It has no influence on order.';


--
-- Name: COLUMN outbox_events.ordering_key; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.ordering_key IS 'Events that share it are published in insert order. At most 2048 bytes; null: no order.';


--
-- Name: COLUMN outbox_events.headers; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.headers IS 'Headers that are delivered with the message.';


--
-- Name: COLUMN outbox_events.metadata; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.metadata IS 'Stays in the database; a trace context in it becomes headers.';


--
-- Name: COLUMN outbox_events.bytes; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.bytes IS 'Bytes of payload, headers, metadata and names, as text.';


--
-- Name: COLUMN outbox_events.available_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.available_at IS 'The event is not published before this time.';


--
-- Name: COLUMN outbox_events.is_open; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.is_open IS 'Whether the event is PENDING or CLAIMED.';


--
-- Name: COLUMN outbox_events.publish_attempts; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.publish_attempts IS 'Claims in this lifecycle, counted before the attempt.';


--
-- Name: COLUMN outbox_events.failures; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.failures IS 'Attempts that failed by the event''s own fault, or ended with their worker. Their number decides on DEAD.';


--
-- Name: COLUMN outbox_events.first_attempt_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.first_attempt_at IS 'Time of the first claim in this lifecycle; null: none yet.';


--
-- Name: COLUMN outbox_events.stream; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.stream IS 'Stream that stored the event.';


--
-- Name: COLUMN outbox_events.stream_seq; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.stream_seq IS 'Sequence in that stream. A replay keeps it, to distinguish the new copy from the old one.';


--
-- Name: COLUMN outbox_events.state; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.state IS 'PENDING, CLAIMED, PUBLISHED or DEAD.';


--
-- Name: COLUMN outbox_events.claimed_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.claimed_at IS 'Time of the claim; null unless CLAIMED.';


--
-- Name: COLUMN outbox_events.claimed_by; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.claimed_by IS 'Worker that holds the claim, and the claim''s token; null unless CLAIMED.';


--
-- Name: COLUMN outbox_events.published_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.published_at IS 'Time of the stream''s acknowledgement; null unless PUBLISHED.';


--
-- Name: COLUMN outbox_events.publish_error; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.outbox_events.publish_error IS 'Last error in this lifecycle.';


--
-- Name: outbox_events_seq_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.outbox_events ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.outbox_events_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: sea_mq_consumers; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.sea_mq_consumers (
    stream text NOT NULL,
    durable text NOT NULL,
    handler text NOT NULL,
    subjects text[] NOT NULL,
    seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: TABLE sea_mq_consumers; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TABLE public.sea_mq_consumers IS 'Durable consumers that workers consume, each with its handler.';


--
-- Name: COLUMN sea_mq_consumers.stream; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_consumers.stream IS 'Stream of the durable.';


--
-- Name: COLUMN sea_mq_consumers.durable; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_consumers.durable IS 'Name of the durable consumer.';


--
-- Name: COLUMN sea_mq_consumers.handler; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_consumers.handler IS 'Scheme, host and port of the handler, and the beginning of the whole URL''s SHA-256.';


--
-- Name: COLUMN sea_mq_consumers.subjects; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_consumers.subjects IS 'Subjects that the durable filters by.';


--
-- Name: COLUMN sea_mq_consumers.seen_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_consumers.seen_at IS 'Last time that a worker consumed it for this handler; -infinity: that worker stopped.';


--
-- Name: sea_mq_context; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.sea_mq_context (
    one boolean DEFAULT true NOT NULL,
    context text NOT NULL,
    since timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT sea_mq_context_one_check CHECK (one)
);


--
-- Name: TABLE sea_mq_context; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TABLE public.sea_mq_context IS 'The bounded context that these tables belong to: that of the first worker.';


--
-- Name: COLUMN sea_mq_context.one; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_context.one IS 'Key of the only row.';


--
-- Name: COLUMN sea_mq_context.context; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_context.context IS 'First token of every own subject.';


--
-- Name: COLUMN sea_mq_context.since; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_context.since IS 'Time of the first worker''s first start.';


--
-- Name: sea_mq_migrations; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.sea_mq_migrations (
    version integer NOT NULL,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    serves_from integer,
    CONSTRAINT chk_migrations_serves_from CHECK (((serves_from >= 1) AND (serves_from <= version)))
);


--
-- Name: TABLE sea_mq_migrations; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TABLE public.sea_mq_migrations IS 'Migrations that this schema has.';


--
-- Name: COLUMN sea_mq_migrations.version; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_migrations.version IS 'Number of the migration, which is the version of the schema.';


--
-- Name: COLUMN sea_mq_migrations.name; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_migrations.name IS 'Name of its file.';


--
-- Name: COLUMN sea_mq_migrations.sha256; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_migrations.sha256 IS 'SHA-256 of its file, in hexadecimal digits.';


--
-- Name: COLUMN sea_mq_migrations.applied_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_migrations.applied_at IS 'Time at which it was applied.';


--
-- Name: COLUMN sea_mq_migrations.serves_from; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_migrations.serves_from IS 'Workers that know this version or a later one may run; null: none older than the migration.';


--
-- Name: sea_mq_sessions; Type: TABLE; Schema: public; Owner: -
--

CREATE UNLOGGED TABLE public.sea_mq_sessions (
    session text NOT NULL,
    side text NOT NULL,
    worker text NOT NULL,
    server_started_at timestamp with time zone DEFAULT pg_postmaster_start_time() NOT NULL
);


--
-- Name: TABLE sea_mq_sessions; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TABLE public.sea_mq_sessions IS 'Sessions of running workers: the leases of a worker end with its connections.';


--
-- Name: COLUMN sea_mq_sessions.session; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_sessions.session IS 'Key of the advisory lock, in hexadecimal digits; part of claimed_by and locked_by.';


--
-- Name: COLUMN sea_mq_sessions.side; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_sessions.side IS 'Side of the worker: outbox or inbox.';


--
-- Name: COLUMN sea_mq_sessions.worker; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_sessions.worker IS 'Name of the worker.';


--
-- Name: COLUMN sea_mq_sessions.server_started_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_sessions.server_started_at IS 'Start of the server on which the session began; a session of an earlier start proves nothing.';


--
-- Name: sea_mq_standings; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.sea_mq_standings (
    stream text NOT NULL,
    durable text NOT NULL,
    standing jsonb NOT NULL,
    missed bigint NOT NULL,
    missed_first_seq bigint,
    missed_last_seq bigint,
    missed_at timestamp with time zone
);


--
-- Name: TABLE sea_mq_standings; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TABLE public.sea_mq_standings IS 'Progress of each durable at the last check, and its missed messages.';


--
-- Name: COLUMN sea_mq_standings.stream; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_standings.stream IS 'Stream of the durable.';


--
-- Name: COLUMN sea_mq_standings.durable; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_standings.durable IS 'Name of the durable consumer.';


--
-- Name: COLUMN sea_mq_standings.standing; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_standings.standing IS 'Progress of stream and durable at the last check.';


--
-- Name: COLUMN sea_mq_standings.missed; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_standings.missed IS 'Number of missed messages, in total.';


--
-- Name: COLUMN sea_mq_standings.missed_first_seq; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_standings.missed_first_seq IS 'First sequence of the last missed range.';


--
-- Name: COLUMN sea_mq_standings.missed_last_seq; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_standings.missed_last_seq IS 'Last sequence of the last missed range.';


--
-- Name: COLUMN sea_mq_standings.missed_at; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON COLUMN public.sea_mq_standings.missed_at IS 'Time of the last detection; null: none.';


--
-- Data for Name: handled_messages; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.handled_messages VALUES ('0190a5e0-0000-7000-8000-000000000003', '2026-11-23 07:31:03.328817+00');


--
-- Data for Name: inbox_messages; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.inbox_messages VALUES ('0190a5e0-0000-7000-8000-000000000001', 'billing.event.made.v1', '2026-11-23 07:31:03.328817+00', NULL, 1, 'HTTP 500', 'orders__from_billing', 'BILLING_EVENTS', 1, '\x00', NULL, NULL, '$JS.ACK.1', NULL, NULL, NULL);
INSERT INTO public.inbox_messages VALUES ('0190a5e0-0000-7000-8000-000000000002', 'billing.event.made.v1', '2026-11-23 07:31:03.328817+00', NULL, 1, 'HTTP 500', 'orders__from_billing', 'BILLING_EVENTS', 2, '\x00', '2026-11-23 06:31:03.328817+00', 'gone', '$JS.ACK.1', NULL, NULL, NULL);
INSERT INTO public.inbox_messages VALUES ('0190a5e0-0000-7000-8000-000000000003', 'billing.event.made.v1', '2026-11-23 07:31:03.328817+00', '2026-11-23 07:31:03.328817+00', 1, 'HTTP 500', 'orders__from_billing', 'BILLING_EVENTS', 3, '\x00', NULL, NULL, '$JS.ACK.1', NULL, NULL, NULL);
INSERT INTO public.inbox_messages VALUES ('0190a5e0-0000-7000-8000-000000000004', 'billing.event.made.v1', '2026-11-23 07:31:03.328817+00', NULL, 1, 'HTTP 500', 'orders__from_billing', 'BILLING_EVENTS', 4, '\x00', NULL, NULL, '$JS.ACK.1', 'REJECTED', '2026-11-23 07:31:03.328817+00', NULL);
INSERT INTO public.inbox_messages VALUES ('0190a5e0-0000-7000-8000-000000000005', 'billing.event.made.v1', '2026-11-23 07:31:03.328817+00', NULL, 1, 'HTTP 500', 'orders__from_billing', 'BILLING_EVENTS', 5, '\x00', NULL, NULL, '$JS.ACK.1', 'REJECTED', '2026-11-23 07:31:03.328817+00', '2026-11-23 07:31:03.328817+00');
INSERT INTO public.inbox_messages VALUES ('0190a5e0-0000-7000-8000-000000000006', 'billing.event.made.v1', '2026-11-23 07:31:03.328817+00', NULL, 1, 'HTTP 500', 'orders__from_billing', 'BILLING_EVENTS', 6, '\x00', NULL, NULL, '$JS.ACK.1', 'CLOSED', '2026-11-23 07:31:03.328817+00', '2026-11-23 07:31:03.328817+00');


--
-- Data for Name: operator_actions; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.operator_actions OVERRIDING SYSTEM VALUE VALUES (1, '2026-11-23 07:31:03.353687+00', 'anna', 'replay', 'lost by a consumer', '{"types": ["order.paid"], "progress": {"through": 6}}', 1, NULL);
INSERT INTO public.operator_actions OVERRIDING SYSTEM VALUE VALUES (2, '2026-11-23 07:31:03.35381+00', 'anna', 'prune_inbox', 'monthly', '{"before": "2025-01-01T00:00:00+00:00"}', 2, 'done');
INSERT INTO public.operator_actions OVERRIDING SYSTEM VALUE VALUES (3, '2026-11-23 07:31:03.353815+00', 'ben', 'discard', 'test data', '{}', 0, 'refused');
INSERT INTO public.operator_actions OVERRIDING SYSTEM VALUE VALUES (4, '2026-11-23 07:31:03.353816+00', 'ben', 'discard', 'test data', '{}', 0, 'failed');


--
-- Data for Name: outbox_events; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.outbox_events OVERRIDING SYSTEM VALUE VALUES ('0190a5e0-0000-7000-8000-000000000001', 'order', 'o-1', 'order.paid', 2, '{"name": "Zoë", "total": 1.00}', '2026-11-23 07:31:03.328817+00', '3da961e7-b30d-4931-836d-ec518db5a09c', '71b61227-2c32-4385-a4ae-4a6f636505de', 1, '2026-11-23 07:31:03.328817+00', 'p', NULL, '{"X-Tenant": "acme"}', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', DEFAULT, '2026-11-23 07:31:03.328817+00', DEFAULT, 0, 0, NULL, NULL, NULL, 'PENDING', NULL, NULL, NULL, NULL);
INSERT INTO public.outbox_events OVERRIDING SYSTEM VALUE VALUES ('0190a5e0-0000-7000-8000-000000000005', 'order', 'o-5', 'order.paid', 2, '{"name": "Zoë", "total": 1.00}', '2026-11-23 07:31:03.328817+00', '9cb6c816-3ff5-42e8-b2dc-14cb9725cd18', '7ac822aa-6d22-41a2-b67a-681805fa7727', 5, '2026-11-23 07:31:03.328817+00', 'p', 'key', '{"X-Tenant": "acme"}', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', DEFAULT, '2026-11-23 07:31:03.328817+00', DEFAULT, 0, 0, NULL, NULL, NULL, 'PENDING', NULL, NULL, NULL, NULL);
INSERT INTO public.outbox_events OVERRIDING SYSTEM VALUE VALUES ('0190a5e0-0000-7000-8000-000000000004', 'order', 'o-4', 'order.paid', 2, '{"name": "Zoë", "total": 1.00}', '2026-11-23 07:31:03.328817+00', '4bebdec2-710e-4cfa-ab9a-2c4b127203be', '79dd97fe-1e26-4f4b-b793-4bef06e640b2', 4, '2026-11-23 07:31:03.328817+00', 'p', NULL, '{"X-Tenant": "acme"}', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', DEFAULT, '2026-11-23 07:31:03.328817+00', DEFAULT, 1, 0, '2026-11-23 06:31:03.328817+00', NULL, NULL, 'CLAIMED', '2026-11-23 06:31:03.328817+00', 'gone', NULL, NULL);
INSERT INTO public.outbox_events OVERRIDING SYSTEM VALUE VALUES ('0190a5e0-0000-7000-8000-000000000008', 'order', 'o-8', 'order.paid', 2, '{"name": "Zoë", "total": 1.00}', '2026-11-23 07:31:03.328817+00', '84db393f-8b42-4206-8e63-2d3f470bfb85', 'f6c5330e-7d9f-4adf-81aa-a28ea84897ca', 8, '2026-11-23 07:31:03.328817+00', 'p', 'key', '{"X-Tenant": "acme"}', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', DEFAULT, '2026-11-23 07:31:03.328817+00', DEFAULT, 1, 0, '2026-11-23 06:31:03.328817+00', NULL, NULL, 'CLAIMED', '2026-11-23 06:31:03.328817+00', 'gone', NULL, NULL);
INSERT INTO public.outbox_events OVERRIDING SYSTEM VALUE VALUES ('0190a5e0-0000-7000-8000-000000000002', 'order', 'o-2', 'order.paid', 2, '{"name": "Zoë", "total": 1.00}', '2026-11-23 07:31:03.328817+00', '394f80d3-68b1-46b9-917f-604c247566dc', '52edffd5-fb1c-4ac4-a5e8-c0ce3db4bf9c', 2, '2026-11-23 07:31:03.328817+00', 'p', NULL, '{"X-Tenant": "acme"}', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', DEFAULT, '2026-11-23 07:31:03.328817+00', DEFAULT, 1, 0, '2026-11-23 06:31:03.328817+00', 'ORDERS_EVENTS', 1, 'PUBLISHED', NULL, NULL, '2026-11-23 07:31:03.328817+00', NULL);
INSERT INTO public.outbox_events OVERRIDING SYSTEM VALUE VALUES ('0190a5e0-0000-7000-8000-000000000003', 'order', 'o-3', 'order.paid', 2, '{"name": "Zoë", "total": 1.00}', '2026-11-23 07:31:03.328817+00', '57aaec30-4521-48c6-9b72-bcccffab2016', '4002fd3c-e3de-489f-9401-d5bc1ed9c0fe', 3, '2026-11-23 07:31:03.328817+00', 'p', NULL, '{"X-Tenant": "acme"}', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', DEFAULT, '2026-11-23 07:31:03.328817+00', DEFAULT, 1, 10, '2026-11-23 06:31:03.328817+00', NULL, NULL, 'DEAD', NULL, NULL, NULL, 'too large');
INSERT INTO public.outbox_events OVERRIDING SYSTEM VALUE VALUES ('0190a5e0-0000-7000-8000-000000000007', 'order', 'o-7', 'order.paid', 2, '{"name": "Zoë", "total": 1.00}', '2026-11-23 07:31:03.328817+00', 'c6e360d0-f637-48eb-a4ca-423b0cbcb862', '190ed3ff-bc1f-4510-bc39-a18e1037ce08', 7, '2026-11-23 07:31:03.328817+00', 'p', 'key', '{"X-Tenant": "acme"}', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', DEFAULT, '2026-11-23 07:31:03.328817+00', DEFAULT, 1, 10, '2026-11-23 06:31:03.328817+00', NULL, NULL, 'DEAD', NULL, NULL, NULL, 'too large');
INSERT INTO public.outbox_events OVERRIDING SYSTEM VALUE VALUES ('0190a5e0-0000-7000-8000-000000000006', 'order', 'o-6', 'order.paid', 2, '{"name": "Zoë", "total": 1.00}', '2026-11-23 07:31:03.328817+00', '9201f4b2-42f1-496a-b083-214812f1ffa7', '0528f74b-64eb-4ba3-8bae-72fb468d430f', 6, '2026-11-23 07:31:03.328817+00', 'p', 'key', '{"X-Tenant": "acme"}', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', DEFAULT, '2026-11-23 07:31:03.328817+00', DEFAULT, 0, 1, '2026-11-23 06:31:03.328817+00', 'ORDERS_EVENTS', 1, 'PENDING', NULL, NULL, NULL, 'no answer');


--
-- Data for Name: sea_mq_consumers; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.sea_mq_consumers VALUES ('BILLING_EVENTS', 'orders__from_billing', 'http://127.0.0.1:80 0123', '{billing.event.>}', '-infinity');


--
-- Data for Name: sea_mq_context; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.sea_mq_context VALUES (true, 'orders', '2026-11-23 07:31:03.329232+00');


--
-- Data for Name: sea_mq_migrations; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.sea_mq_migrations VALUES (1, '0001_schema', 'a0531f5751521b8287dff9b49abb19632c8905bd3fd7dbf8714d6675a4661a00', '2026-11-23 07:31:03.297428+00', NULL);


--
-- Data for Name: sea_mq_sessions; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: sea_mq_standings; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.sea_mq_standings VALUES ('BILLING_EVENTS', 'orders__from_billing', '{}', 0, NULL, NULL, NULL);


--
-- Name: operator_actions_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.operator_actions_id_seq', 4, true);


--
-- Name: outbox_events_seq_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.outbox_events_seq_seq', 8, true);


--
-- Name: inbox_messages DUPLICATE_MESSAGE; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.inbox_messages
    ADD CONSTRAINT "DUPLICATE_MESSAGE" PRIMARY KEY (message_id);


--
-- Name: handled_messages handled_messages_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.handled_messages
    ADD CONSTRAINT handled_messages_pkey PRIMARY KEY (message_id);


--
-- Name: operator_actions operator_actions_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.operator_actions
    ADD CONSTRAINT operator_actions_pkey PRIMARY KEY (id);


--
-- Name: outbox_events outbox_events_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.outbox_events
    ADD CONSTRAINT outbox_events_pkey PRIMARY KEY (id);


--
-- Name: sea_mq_consumers sea_mq_consumers_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.sea_mq_consumers
    ADD CONSTRAINT sea_mq_consumers_pkey PRIMARY KEY (stream, durable, handler);


--
-- Name: sea_mq_context sea_mq_context_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.sea_mq_context
    ADD CONSTRAINT sea_mq_context_pkey PRIMARY KEY (one);


--
-- Name: sea_mq_migrations sea_mq_migrations_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.sea_mq_migrations
    ADD CONSTRAINT sea_mq_migrations_pkey PRIMARY KEY (version);


--
-- Name: sea_mq_sessions sea_mq_sessions_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.sea_mq_sessions
    ADD CONSTRAINT sea_mq_sessions_pkey PRIMARY KEY (session, side);


--
-- Name: sea_mq_standings sea_mq_standings_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.sea_mq_standings
    ADD CONSTRAINT sea_mq_standings_pkey PRIMARY KEY (stream, durable);


--
-- Name: idx_inbox_dead_lettered; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idx_inbox_dead_lettered ON public.inbox_messages USING btree (dead_lettered_at) WHERE (dead_lettered_at IS NOT NULL);


--
-- Name: INDEX idx_inbox_dead_lettered; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON INDEX public.idx_inbox_dead_lettered IS 'Numbers and lists of dead-lettered messages, and their pruning.';


--
-- Name: idx_inbox_unprocessed; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idx_inbox_unprocessed ON public.inbox_messages USING btree (received_at) WHERE (processed_at IS NULL);


--
-- Name: INDEX idx_inbox_unprocessed; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON INDEX public.idx_inbox_unprocessed IS 'SDS-047: the depth, the age of the oldest message, and overdue messages.';


--
-- Name: idx_outbox_correlation; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idx_outbox_correlation ON public.outbox_events USING btree (correlation_id);


--
-- Name: INDEX idx_outbox_correlation; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON INDEX public.idx_outbox_correlation IS 'SDS-047: all events of one request.';


--
-- Name: idx_outbox_dead; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idx_outbox_dead ON public.outbox_events USING btree (ordering_key, seq) WHERE ((NOT is_open) AND (published_at IS NULL));


--
-- Name: INDEX idx_outbox_dead; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON INDEX public.idx_outbox_dead IS 'DEAD events; with an ordering key, those that may hold it.';


--
-- Name: idx_outbox_due; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idx_outbox_due ON public.outbox_events USING btree (available_at, seq) WHERE (is_open AND (ordering_key IS NULL) AND (publish_error IS NULL));


--
-- Name: INDEX idx_outbox_due; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON INDEX public.idx_outbox_due IS 'Claims of the lane without ordering keys.';


--
-- Name: idx_outbox_due_ordered; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idx_outbox_due_ordered ON public.outbox_events USING btree (available_at, seq) WHERE (is_open AND (ordering_key IS NOT NULL) AND (publish_error IS NULL));


--
-- Name: INDEX idx_outbox_due_ordered; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON INDEX public.idx_outbox_due_ordered IS 'Claims of the lane with ordering keys.';


--
-- Name: idx_outbox_ordering; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idx_outbox_ordering ON public.outbox_events USING btree (ordering_key, seq) WHERE (is_open AND (ordering_key IS NOT NULL));


--
-- Name: INDEX idx_outbox_ordering; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON INDEX public.idx_outbox_ordering IS 'The run of an ordering key.';


--
-- Name: idx_outbox_retry; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idx_outbox_retry ON public.outbox_events USING btree (available_at, seq) WHERE (is_open AND (ordering_key IS NULL) AND (publish_error IS NOT NULL));


--
-- Name: INDEX idx_outbox_retry; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON INDEX public.idx_outbox_retry IS 'Claims of events without an ordering key that failed before. Each claim reserves a share for them.';


--
-- Name: idx_outbox_retry_ordered; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idx_outbox_retry_ordered ON public.outbox_events USING btree (available_at, seq) WHERE (is_open AND (ordering_key IS NOT NULL) AND (publish_error IS NOT NULL));


--
-- Name: INDEX idx_outbox_retry_ordered; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON INDEX public.idx_outbox_retry_ordered IS 'Claims of events with an ordering key that failed before. Each claim reserves a share for them.';


--
-- Name: idx_outbox_unpublished; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idx_outbox_unpublished ON public.outbox_events USING btree (occurred_at) WHERE (published_at IS NULL);


--
-- Name: INDEX idx_outbox_unpublished; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON INDEX public.idx_outbox_unpublished IS 'SDS-047: the depth and the age of the oldest event.';


--
-- Name: outbox_events chk_occurred_not_future; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER chk_occurred_not_future BEFORE INSERT ON public.outbox_events FOR EACH ROW WHEN ((new.occurred_at > (now() + '00:01:00'::interval))) EXECUTE FUNCTION public.outbox_reject('FUTURE_EVENT: occurred_at is in the future (POL-047-002)');


--
-- Name: TRIGGER chk_occurred_not_future ON outbox_events; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TRIGGER chk_occurred_not_future ON public.outbox_events IS 'Refuses an event of the future (POL-047-002).';


--
-- Name: inbox_messages inbox_delete_marks; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER inbox_delete_marks AFTER DELETE ON public.inbox_messages REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.inbox_delete_marks();


--
-- Name: TRIGGER inbox_delete_marks ON inbox_messages; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TRIGGER inbox_delete_marks ON public.inbox_messages IS 'Deletes the marks of deleted messages.';


--
-- Name: operator_actions operator_actions_grow; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER operator_actions_grow BEFORE UPDATE ON public.operator_actions FOR EACH ROW WHEN (((old.outcome IS NOT NULL) OR (((((old.id IS DISTINCT FROM new.id) OR (old.at IS DISTINCT FROM new.at)) OR (old.actor IS DISTINCT FROM new.actor)) OR (old.action IS DISTINCT FROM new.action)) OR (old.reason IS DISTINCT FROM new.reason)) OR (new.affected < old.affected) OR ((old.selection - '{progress,dropped}'::text[]) IS DISTINCT FROM (new.selection - '{progress,dropped}'::text[])) OR ((old.selection #> '{progress,as_given}'::text[]) IS DISTINCT FROM (new.selection #> '{progress,as_given}'::text[])) OR (COALESCE(((new.selection #>> '{progress,through}'::text[]))::bigint, ('-1'::integer)::bigint) < COALESCE(((old.selection #>> '{progress,through}'::text[]))::bigint, ('-1'::integer)::bigint)) OR (NOT (COALESCE((new.selection -> 'dropped'::text), '[]'::jsonb) @> COALESCE((old.selection -> 'dropped'::text), '[]'::jsonb))))) EXECUTE FUNCTION public.operator_actions_reject();


--
-- Name: TRIGGER operator_actions_grow ON operator_actions; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TRIGGER operator_actions_grow ON public.operator_actions IS 'Refuses to change a record, except for its progress until it has an outcome.';


--
-- Name: outbox_events outbox_a_required; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER outbox_a_required BEFORE INSERT ON public.outbox_events FOR EACH ROW WHEN (((new.id IS NULL) OR (new.event_type IS NULL))) EXECUTE FUNCTION public.outbox_reject('INVALID_OUTBOX: id and event_type are required (POL-047-001)');


--
-- Name: TRIGGER outbox_a_required ON outbox_events; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TRIGGER outbox_a_required ON public.outbox_events IS 'Refuses an event without an ID or a type (POL-047-001).';


--
-- Name: outbox_events outbox_calendar; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER outbox_calendar BEFORE INSERT ON public.outbox_events FOR EACH ROW WHEN (((LEAST(new.occurred_at, new.available_at, new.created_at) < '0001-01-01 00:00:00+00'::timestamp with time zone) OR (GREATEST(new.created_at, NULLIF(new.available_at, 'infinity'::timestamp with time zone)) >= '9999-12-31 00:00:00+00'::timestamp with time zone))) EXECUTE FUNCTION public.outbox_reject('INVALID_OUTBOX: a time is not within the years 1 to 9999');


--
-- Name: TRIGGER outbox_calendar ON outbox_events; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TRIGGER outbox_calendar ON public.outbox_events IS 'Refuses a time outside of the years 1 to 9999, which RFC 3339 cannot express.';


--
-- Name: outbox_events outbox_immutable; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER outbox_immutable AFTER UPDATE OF id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id, causation_id, seq, created_at, partition_key, ordering_key, headers, metadata ON public.outbox_events FOR EACH ROW WHEN ((((((((((((((((old.id IS DISTINCT FROM new.id) OR (old.aggregate_type IS DISTINCT FROM new.aggregate_type)) OR (old.aggregate_id IS DISTINCT FROM new.aggregate_id)) OR (old.event_type IS DISTINCT FROM new.event_type)) OR (old.event_version IS DISTINCT FROM new.event_version)) OR (old.occurred_at IS DISTINCT FROM new.occurred_at)) OR (old.correlation_id IS DISTINCT FROM new.correlation_id)) OR (old.causation_id IS DISTINCT FROM new.causation_id)) OR (old.seq IS DISTINCT FROM new.seq)) OR (old.created_at IS DISTINCT FROM new.created_at)) OR (old.partition_key IS DISTINCT FROM new.partition_key)) OR (old.ordering_key IS DISTINCT FROM new.ordering_key)) OR (old.headers IS DISTINCT FROM new.headers)) OR (old.metadata IS DISTINCT FROM new.metadata)) OR (old.payload IS DISTINCT FROM new.payload))) EXECUTE FUNCTION public.outbox_reject('immutable columns do not change');


--
-- Name: TRIGGER outbox_immutable ON outbox_events; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TRIGGER outbox_immutable ON public.outbox_events IS 'Refuses a change of what the producer wrote.';


--
-- Name: outbox_events outbox_initial; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER outbox_initial AFTER INSERT ON public.outbox_events FOR EACH ROW WHEN (((new.state <> 'PENDING'::text) OR (new.publish_attempts <> 0) OR (new.failures <> 0))) EXECUTE FUNCTION public.outbox_reject('an event starts PENDING and without attempts');


--
-- Name: TRIGGER outbox_initial ON outbox_events; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TRIGGER outbox_initial ON public.outbox_events IS 'Refuses an event that does not start PENDING and without attempts.';


--
-- Name: outbox_events outbox_keep_open; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER outbox_keep_open AFTER DELETE ON public.outbox_events FOR EACH ROW WHEN (old.is_open) EXECUTE FUNCTION public.outbox_reject('an event that is not published or dead cannot be deleted');


--
-- Name: TRIGGER outbox_keep_open ON outbox_events; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TRIGGER outbox_keep_open ON public.outbox_events IS 'Refuses to delete an event that is not PUBLISHED or DEAD.';


--
-- Name: outbox_events outbox_keep_open_all; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER outbox_keep_open_all BEFORE TRUNCATE ON public.outbox_events FOR EACH STATEMENT EXECUTE FUNCTION public.outbox_reject_truncate();


--
-- Name: TRIGGER outbox_keep_open_all ON outbox_events; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TRIGGER outbox_keep_open_all ON public.outbox_events IS 'Refuses to truncate while an event is not PUBLISHED or DEAD.';


--
-- Name: outbox_events outbox_key_length; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER outbox_key_length BEFORE INSERT ON public.outbox_events FOR EACH ROW WHEN ((octet_length(new.ordering_key) > 2048)) EXECUTE FUNCTION public.outbox_reject('INVALID_OUTBOX: ordering_key is longer than 2048 bytes; use a hash of it');


--
-- Name: TRIGGER outbox_key_length ON outbox_events; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TRIGGER outbox_key_length ON public.outbox_events IS 'Refuses an ordering key that an index has no room for.';


--
-- Name: outbox_events outbox_not_yet; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER outbox_not_yet BEFORE INSERT ON public.outbox_events FOR EACH ROW WHEN ((new.occurred_at > new.available_at)) EXECUTE FUNCTION public.outbox_defer();


--
-- Name: TRIGGER outbox_not_yet ON outbox_events; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TRIGGER outbox_not_yet ON public.outbox_events IS 'Defers an event that occurs within the next minute until it has occurred.';


--
-- Name: outbox_events outbox_transition; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER outbox_transition AFTER UPDATE ON public.outbox_events FOR EACH ROW WHEN (
        CASE old.state
            WHEN 'PENDING'::text THEN ((new.state <> ALL (ARRAY['PENDING'::text, 'CLAIMED'::text])) OR (new.publish_attempts < old.publish_attempts) OR ((new.state = 'CLAIMED'::text) AND ((new.publish_attempts <= old.publish_attempts) OR (old.available_at > now()))))
            WHEN 'CLAIMED'::text THEN ((new.publish_attempts < old.publish_attempts) OR ((new.state = 'CLAIMED'::text) AND ((new.claimed_by IS DISTINCT FROM old.claimed_by) OR (new.claimed_at < old.claimed_at))))
            WHEN 'PUBLISHED'::text THEN ((new.state <> ALL (ARRAY['PUBLISHED'::text, 'PENDING'::text])) OR ((new.state = 'PUBLISHED'::text) AND ((new.published_at IS DISTINCT FROM old.published_at) OR (new.publish_attempts < old.publish_attempts))))
            ELSE ((new.state <> ALL (ARRAY['DEAD'::text, 'PENDING'::text])) OR ((new.state = 'DEAD'::text) AND (new.publish_attempts < old.publish_attempts)))
        END) EXECUTE FUNCTION public.outbox_reject('this transition is not in the lifecycle');


--
-- Name: TRIGGER outbox_transition ON outbox_events; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TRIGGER outbox_transition ON public.outbox_events IS 'Refuses a change of state that is not in the lifecycle.';


--
-- Name: outbox_events outbox_wakeup; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER outbox_wakeup AFTER INSERT ON public.outbox_events REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.outbox_notify();


--
-- Name: TRIGGER outbox_wakeup ON outbox_events; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON TRIGGER outbox_wakeup ON public.outbox_events IS 'Wakes an idle worker.';


--
-- PostgreSQL database dump complete
--


