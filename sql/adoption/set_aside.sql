-- Gives SDS-047's tables, their indexes and constraints other names, so that the migration can create its own. Nobody else uses the
-- tables from here to the end of the transaction.
SET LOCAL lock_timeout = '2s';
SET LOCAL maintenance_work_mem = '256MB';

DO $$
DECLARE
    old REGCLASS;
    part TEXT;
BEGIN
    FOREACH old IN ARRAY array_remove(ARRAY[to_regclass('outbox_events'), to_regclass('inbox_messages')], NULL) LOOP
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', old);
    END LOOP;
    FOREACH old IN ARRAY array_remove(ARRAY[to_regclass('outbox_events'), to_regclass('inbox_messages')], NULL) LOOP
        FOR part IN SELECT conname FROM pg_constraint WHERE conrelid = old LOOP
            EXECUTE format('ALTER TABLE %s RENAME CONSTRAINT %I TO %I', old, part, left('sds047_' || part, 63));
        END LOOP;
        FOR part IN
            SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
             WHERE i.indrelid = old AND NOT starts_with(c.relname, 'sds047_')
        LOOP
            EXECUTE format('ALTER INDEX %I RENAME TO %I', part, left('sds047_' || part, 63));
        END LOOP;
        EXECUTE format('ALTER TABLE %s RENAME TO sds047_%s', old, (SELECT relname FROM pg_class WHERE oid = old));
    END LOOP;
END $$;
