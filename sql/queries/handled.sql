-- The statement of a service's handler, inside its own transaction. It needs only the privilege INSERT.

-- name: mark
-- Marks a message as handled; affects no row if an earlier transaction has marked it. Waits for the end of a concurrent
-- transaction that marks the same message. Index: the primary key.
-- $1 message id.
INSERT INTO handled_messages (message_id) VALUES (CAST(CAST($1 AS text) AS uuid)) ON CONFLICT DO NOTHING;
