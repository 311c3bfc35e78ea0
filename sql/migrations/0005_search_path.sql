-- Triggers run in the session of whoever writes. A function or operator in that session's search path whose types fit
-- better than the system's own would be called instead, with the writer's rights: only the system's are looked for.

ALTER FUNCTION outbox_reject() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION outbox_defer() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION outbox_reject_truncate() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION outbox_notify() SET search_path = pg_catalog, pg_temp;
