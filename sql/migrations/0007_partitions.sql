-- Serves workers from version 6.
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
