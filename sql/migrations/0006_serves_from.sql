-- The older workers that may continue on a newer schema. A compatible migration has a line such as
-- "-- Serves workers from version 6."; the version is that of the schema which a worker knows.

ALTER TABLE sea_mq_migrations ADD COLUMN serves_from INT
    CONSTRAINT chk_migrations_serves_from CHECK (serves_from >= 1 AND serves_from <= version);

COMMENT ON TABLE sea_mq_migrations IS 'Migrations that this schema has.';
COMMENT ON COLUMN sea_mq_migrations.version IS 'Number of the migration, which is the version of the schema.';
COMMENT ON COLUMN sea_mq_migrations.name IS 'Name of its file.';
COMMENT ON COLUMN sea_mq_migrations.applied_at IS 'Time at which it was applied.';
COMMENT ON COLUMN sea_mq_migrations.serves_from IS
    'Workers that know this version or a later one may run; null: none older than the migration.';
