-- The whole schema, for psql: psql -v ON_ERROR_STOP=1 -1 -f sql/schema.sql
-- The worker's own `migrate` applies the same files, each once; it also takes over a schema installed here.
-- Lines are only added: a migration of a release never changes, nor does its SHA-256.
-- A new column: add migrations/NNNN_<name>.sql and its lines here; then name the column in queries/, such as in
-- the fragment event_columns of queries/outbox.sql, whose columns are the fields of OutboxEvent in their order.

\ir migrations/0001_schema.sql
INSERT INTO sea_mq_migrations (version, name, sha256)
VALUES (1, '0001_schema', 'a0531f5751521b8287dff9b49abb19632c8905bd3fd7dbf8714d6675a4661a00');

\ir migrations/0002_foreign_hands.sql
INSERT INTO sea_mq_migrations (version, name, sha256, serves_from)
VALUES (2, '0002_foreign_hands', '88cfeb58ea89568613a8ed28ddf0400f7f35f71a4603fc2458ed1a66859f274f', 1);

\ir migrations/0003_busy_keys.sql
INSERT INTO sea_mq_migrations (version, name, sha256, serves_from)
VALUES (3, '0003_busy_keys', '407798f7759ccf8d158969341cfcb96521ab08c0042d3c5c85daaa22c9e356fc', 1);
