-- An order and its event in one transaction, from any program that speaks SQL:
--
--   psql "$SEA_MQ_DATABASE_URL" -v ON_ERROR_STOP=1 -v item=book -f order.sql
--
-- The columns are SDS-047's. All others have defaults.

CREATE TABLE IF NOT EXISTS sql_orders (id SERIAL PRIMARY KEY, item TEXT NOT NULL);

BEGIN;

WITH placed AS (
    INSERT INTO sql_orders (item) VALUES (:'item') RETURNING id, item
)
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, event_version, payload)
SELECT gen_random_uuid(), 'order', id::text, 'sql_order.placed', 1, jsonb_build_object('order', id, 'item', item)
  FROM placed;

COMMIT;
