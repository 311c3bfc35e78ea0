-- Divides the outbox into daily partitions (docs/how-to/partitions.md). The tables' owner runs it on PostgreSQL 17 or
-- newer, by `partitions enable` or by psql:
--
--   PGOPTIONS='-c search_path=orders' psql -v ON_ERROR_STOP=1 -1 -f sql/partitions.sql
--
-- The table becomes the partition outbox_events_before, with all ids up to a coming midnight. A new table takes its
-- name, with the same columns, constraints, indexes, triggers and rights. No row is copied. The old table is read
-- once to check its ids, while all users of the outbox wait. An outbox that has partitions is not changed.

SET LOCAL lock_timeout = '2s';

DO $$
DECLARE
    midnight TIMESTAMPTZ := date_trunc('day', now() + interval '25 hours', 'UTC');
    owner TEXT;
    bound TEXT;
    last_seq BIGINT;
    seq_rights ACLITEM[];
    granted TEXT;
    indexes TEXT[];
    triggers TEXT[];
    comments TEXT[];
    old_index TEXT;
    old_trigger TEXT;
    definition TEXT;
    beyond UUID;
BEGIN
    IF current_setting('server_version_num')::int < 170000 THEN
        RAISE EXCEPTION 'an outbox in partitions needs PostgreSQL 17 or newer';
    END IF;
    LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE;
    SELECT pg_get_userbyid(relowner) INTO owner FROM pg_class WHERE oid = 'outbox_events'::regclass AND relkind = 'r';
    IF owner IS NULL THEN
        RETURN;
    END IF;

    SELECT id INTO beyond FROM outbox_events WHERE id >= outbox_id_from(midnight) ORDER BY id DESC LIMIT 1;
    IF beyond IS NOT NULL THEN
        RAISE EXCEPTION 'event % has an id of a time to come, or no UUIDv7: have producers use UUIDv7, and prune what'
            ' has other ids', beyond;
    END IF;
    SELECT string_agg(DISTINCT pg_describe_object(d.classid, d.objid, 0), ', ') INTO bound
      FROM pg_depend d
      LEFT JOIN pg_constraint c ON d.classid = 'pg_constraint'::regclass AND c.oid = d.objid
     WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = 'outbox_events'::regclass AND d.deptype IN ('n', 'a')
       AND (d.classid IN ('pg_rewrite'::regclass, 'pg_publication_rel'::regclass, 'pg_policy'::regclass)
            OR c.contype = 'f');
    IF bound IS NOT NULL THEN
        RAISE EXCEPTION 'bound to the table, and would stay with its old rows: %; drop it, and create it again afterwards',
            bound;
    END IF;
    -- Each partition would be published under its own name, which no subscriber has.
    SELECT string_agg(format('%I', pubname), ', ') INTO bound
      FROM pg_publication_tables
      JOIN pg_publication USING (pubname)
     WHERE schemaname = current_schema AND tablename = 'outbox_events' AND NOT pubviaroot;
    IF bound IS NOT NULL THEN
        RAISE EXCEPTION 'publications of all tables: %; set publish_via_partition_root = true for them first', bound;
    END IF;

    SELECT pg_sequence_last_value(pg_get_serial_sequence('outbox_events', 'seq')) INTO last_seq;
    SELECT relacl INTO seq_rights FROM pg_class
     WHERE oid = pg_get_serial_sequence('outbox_events', 'seq')::regclass;
    SELECT array_agg(pg_get_triggerdef(oid) ORDER BY tgname) INTO triggers
      FROM pg_trigger WHERE tgrelid = 'outbox_events'::regclass AND NOT tgisinternal;
    SELECT array_agg(pg_get_indexdef(indexrelid) ORDER BY indexrelid) INTO indexes
      FROM pg_index WHERE indrelid = 'outbox_events'::regclass AND NOT indisprimary AND indisvalid;
    SELECT array_agg(format('COMMENT ON %s IS %L', described.object, described.comment)) INTO comments
      FROM (SELECT format('INDEX %s', indexrelid::regclass) AS object, obj_description(indexrelid, 'pg_class') AS comment
              FROM pg_index WHERE indrelid = 'outbox_events'::regclass AND NOT indisprimary AND indisvalid
             UNION ALL
            SELECT format('TRIGGER %I ON outbox_events', tgname), obj_description(oid, 'pg_trigger')
              FROM pg_trigger WHERE tgrelid = 'outbox_events'::regclass AND NOT tgisinternal) described
     WHERE described.comment IS NOT NULL;

    -- Names are unique in a schema, so the old table's are changed. Its triggers come back with the new table's.
    FOR old_index IN SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 'outbox_events'::regclass LOOP
        EXECUTE format('ALTER INDEX %s RENAME TO %I', old_index, left(trim('"' FROM old_index), 56) || '_before');
    END LOOP;
    FOR old_trigger IN
        SELECT tgname FROM pg_trigger
         WHERE tgrelid = 'outbox_events'::regclass AND NOT tgisinternal AND tgname <> 'outbox_keep_open_all'
    LOOP
        EXECUTE format('DROP TRIGGER %I ON outbox_events', old_trigger);
    END LOOP;
    ALTER TABLE outbox_events ALTER seq DROP IDENTITY;
    ALTER TABLE outbox_events RENAME TO outbox_events_before;

    CREATE TABLE outbox_events (LIKE outbox_events_before INCLUDING ALL EXCLUDING IDENTITY EXCLUDING INDEXES)
        PARTITION BY RANGE (id);
    ALTER TABLE outbox_events ADD CONSTRAINT outbox_events_pkey PRIMARY KEY (id);
    EXECUTE format('ALTER TABLE outbox_events ALTER seq ADD GENERATED ALWAYS AS IDENTITY (START %s)',
                   coalesce(last_seq, 0) + 1);
    EXECUTE format('ALTER TABLE outbox_events OWNER TO %I', owner);
    FOR granted IN
        SELECT format('GRANT %s ON SEQUENCE %s TO %I', privilege_type,
                      pg_get_serial_sequence('outbox_events', 'seq'), pg_get_userbyid(grantee))
          FROM aclexplode(seq_rights) WHERE grantee <> 0::oid
    LOOP
        EXECUTE granted;
    END LOOP;
    EXECUTE format('COMMENT ON TABLE outbox_events IS %L',
                   obj_description('outbox_events_before'::regclass, 'pg_class'));
    PERFORM outbox_copy_rights('outbox_events_before', 'outbox_events');
    FOREACH definition IN ARRAY indexes || triggers || comments LOOP
        EXECUTE definition;
    END LOOP;

    EXECUTE format('ALTER TABLE outbox_events ATTACH PARTITION outbox_events_before FOR VALUES FROM (MINVALUE) TO (%L)',
                   outbox_id_from(midnight));
    PERFORM outbox_add_partition('outbox_events_default', 'DEFAULT', 'outbox_events_before');
END $$;

SELECT outbox_make_partitions(7);
