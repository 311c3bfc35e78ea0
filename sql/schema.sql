-- The whole schema, for psql: psql -v ON_ERROR_STOP=1 -1 -f sql/schema.sql
-- The worker's own `migrate` applies the same files, each once; it also takes over a schema installed here.

\ir migrations/0000_versions.sql
\ir migrations/0001_outbox.sql
INSERT INTO sea_mq_migrations (version, name) VALUES (1, '0001_outbox');
\ir migrations/0002_inbox.sql
INSERT INTO sea_mq_migrations (version, name) VALUES (2, '0002_inbox');
\ir migrations/0003_operator_actions.sql
INSERT INTO sea_mq_migrations (version, name) VALUES (3, '0003_operator_actions');
\ir migrations/0004_context.sql
INSERT INTO sea_mq_migrations (version, name) VALUES (4, '0004_context');
\ir migrations/0005_search_path.sql
INSERT INTO sea_mq_migrations (version, name) VALUES (5, '0005_search_path');
\ir migrations/0006_serves_from.sql
INSERT INTO sea_mq_migrations (version, name) VALUES (6, '0006_serves_from');
\ir migrations/0007_partitions.sql
INSERT INTO sea_mq_migrations (version, name, serves_from) VALUES (7, '0007_partitions', 6);
