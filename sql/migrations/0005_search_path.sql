-- Triggers run in the writer's session. A function or operator in that session's search path whose types fit better
-- than the system's would be called instead, with the writer's rights. So only the system's schema is searched.

ALTER FUNCTION outbox_reject() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION outbox_defer() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION outbox_reject_truncate() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION outbox_notify() SET search_path = pg_catalog, pg_temp;
