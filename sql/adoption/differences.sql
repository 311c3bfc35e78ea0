-- What keeps outbox_events and inbox_messages from being SDS-047's tables, each with its remedy; no row: nothing does.
-- A missing index or CHECK loses nothing. Whatever else depends on a table would be lost with it.
WITH expected (relation, name, definition) AS (
    VALUES ('outbox_events', 'id', 'uuid NOT NULL'),
           ('outbox_events', 'aggregate_type', 'text NOT NULL'),
           ('outbox_events', 'aggregate_id', 'text NOT NULL'),
           ('outbox_events', 'event_type', 'text NOT NULL'),
           ('outbox_events', 'event_version', 'integer NOT NULL DEFAULT 1'),
           ('outbox_events', 'payload', 'jsonb NOT NULL'),
           ('outbox_events', 'occurred_at', 'timestamp with time zone NOT NULL DEFAULT now()'),
           ('outbox_events', 'correlation_id', 'uuid'),
           ('outbox_events', 'causation_id', 'uuid'),
           ('outbox_events', 'published_at', 'timestamp with time zone'),
           ('outbox_events', 'publish_attempts', 'integer NOT NULL DEFAULT 0'),
           ('outbox_events', 'publish_error', 'text'),
           ('inbox_messages', 'message_id', 'uuid NOT NULL'),
           ('inbox_messages', 'subject', 'text NOT NULL'),
           ('inbox_messages', 'received_at', 'timestamp with time zone NOT NULL DEFAULT now()'),
           ('inbox_messages', 'processed_at', 'timestamp with time zone'),
           ('inbox_messages', 'attempts', 'integer NOT NULL DEFAULT 0'),
           ('inbox_messages', 'last_error', 'text')
), present AS (
    SELECT c.oid, c.relname::text AS relation, c.relkind, c.relispartition, c.relrowsecurity, c.relowner
      FROM pg_class c
     WHERE c.oid IN (to_regclass('outbox_events'), to_regclass('inbox_messages'))
), columns AS (
    SELECT p.relation, a.attname::text AS name,
           format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
           || coalesce(CASE WHEN a.attgenerated = '' THEN ' DEFAULT ' ELSE ' GENERATED ' END
                       || pg_get_expr(d.adbin, d.adrelid), '')
           || CASE WHEN a.attidentity = '' THEN '' ELSE ' IDENTITY' END AS definition
      FROM present p
      JOIN pg_attribute a ON a.attrelid = p.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
), keys AS (
    SELECT p.relation
      FROM present p
      JOIN pg_index i ON i.indrelid = p.oid AND i.indisprimary AND i.indnkeyatts = 1
      JOIN pg_attribute a ON a.attrelid = p.oid AND a.attnum = i.indkey[0]
     WHERE a.attname IN ('id', 'message_id')
), dependents AS (
    SELECT DISTINCT p.relation, pg_describe_object(d.classid, d.objid, d.objsubid) AS object
      FROM present p
      JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = p.oid AND d.deptype IN ('n', 'a')
      LEFT JOIN pg_constraint k ON d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
      LEFT JOIN pg_class i ON d.classid = 'pg_class'::regclass AND i.oid = d.objid
     WHERE d.classid <> 'pg_attrdef'::regclass
       AND NOT (k.conrelid = p.oid AND (k.contype IN ('p', 'n') OR k.conname = 'chk_occurred_not_future')) IS TRUE
       AND (i.relname IN ('idx_outbox_unpublished', 'idx_outbox_correlation', 'idx_inbox_unprocessed')) IS NOT TRUE
)
SELECT format('%s is owned by %s, not by %s: migrate as its owner', relation, pg_get_userbyid(relowner), current_user)
           AS problem
  FROM present WHERE relowner <> current_user::regrole
UNION ALL
SELECT format('%s is not a plain table', relation) FROM present WHERE relkind <> 'r' OR relispartition
UNION ALL
SELECT format('%s has row level security: disable it, and enable it again afterwards', relation)
  FROM present WHERE relrowsecurity
UNION ALL
SELECT format('column %I of %s is not in SDS-047: move it to a table of your own', f.name, f.relation)
  FROM columns f LEFT JOIN expected e USING (relation, name) WHERE e.name IS NULL
UNION ALL
SELECT format('column %I of %s is missing: add it (%s)', e.name, e.relation, e.definition)
  FROM expected e JOIN present USING (relation) LEFT JOIN columns f USING (relation, name) WHERE f.name IS NULL
UNION ALL
SELECT format('column %I of %s is "%s": make it "%s"', e.name, e.relation, f.definition, e.definition)
  FROM expected e JOIN columns f USING (relation, name) WHERE f.definition <> e.definition
UNION ALL
SELECT format('%s has no primary key on its id: add it', relation)
  FROM present LEFT JOIN keys USING (relation) WHERE keys.relation IS NULL
UNION ALL
SELECT format('%s would be lost with %s: drop it, and create it again afterwards', object, relation) FROM dependents
