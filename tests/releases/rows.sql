-- Rows in every state of release 1.0, for the dump of a release. An id names its row's state by its last digits.

INSERT INTO sea_mq_context (context) VALUES ('orders');

INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, event_version, payload, correlation_id,
                           causation_id, partition_key, ordering_key, headers, metadata)
SELECT format('0190a5e0-0000-7000-8000-%s', lpad(n::text, 12, '0'))::uuid, 'order', 'o-' || n, 'order.paid', 2,
       '{"total": 1.00, "name": "Zoë"}', gen_random_uuid(), gen_random_uuid(), 'p', CASE WHEN n > 4 THEN 'key' END,
       '{"X-Tenant": "acme"}', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'
  FROM generate_series(1, 8) AS n;

-- 1 and 5 are PENDING; of the others, 2 and 6 end as PUBLISHED, 3 and 7 as DEAD, 4 and 8 are CLAIMED.
UPDATE outbox_events SET state = 'CLAIMED', claimed_at = now() - interval '1 hour', claimed_by = 'gone', publish_attempts = 1,
       first_attempt_at = now() - interval '1 hour'
 WHERE aggregate_id NOT IN ('o-1', 'o-5');
UPDATE outbox_events SET state = 'PUBLISHED', claimed_at = NULL, claimed_by = NULL, published_at = now(), stream = 'ORDERS_EVENTS',
       stream_seq = 1
 WHERE aggregate_id IN ('o-2', 'o-6');
UPDATE outbox_events SET state = 'DEAD', claimed_at = NULL, claimed_by = NULL, failures = 10, publish_error = 'too large'
 WHERE aggregate_id IN ('o-3', 'o-7');
-- replayed once, and failed since
UPDATE outbox_events SET state = 'PENDING', publish_attempts = 0, published_at = NULL, publish_error = 'no answer', failures = 1
 WHERE aggregate_id = 'o-6';

INSERT INTO inbox_messages (message_id, subject, attempts, last_error, consumer, stream, stream_seq, content_hash,
                            locked_until, locked_by, reply)
SELECT format('0190a5e0-0000-7000-8000-%s', lpad(n::text, 12, '0'))::uuid, 'billing.event.made.v1', 1, 'HTTP 500',
       'orders__from_billing', 'BILLING_EVENTS', n, '\x00',
       CASE WHEN n = 2 THEN now() - interval '1 hour' END, CASE WHEN n = 2 THEN 'gone' END, '$JS.ACK.1'
  FROM generate_series(1, 6) AS n;
-- 1 waits, 2 is leased, 3 is processed, 4 is being dead-lettered, 5 is dead-lettered, 6 is closed by an operator.
UPDATE inbox_messages SET processed_at = now() WHERE stream_seq = 3;
UPDATE inbox_messages SET dead_letter_reason = 'REJECTED', dead_letter_begun_at = now() WHERE stream_seq IN (4, 5);
UPDATE inbox_messages SET dead_letter_reason = 'CLOSED', dead_letter_begun_at = now() WHERE stream_seq = 6;
UPDATE inbox_messages SET dead_lettered_at = now() WHERE stream_seq IN (5, 6);

INSERT INTO handled_messages (message_id) SELECT message_id FROM inbox_messages WHERE processed_at IS NOT NULL;

INSERT INTO operator_actions (actor, action, reason, selection, affected, outcome)
VALUES ('anna', 'replay', 'lost by a consumer', '{"types": ["order.paid"], "progress": {"through": 6}}', 1, NULL),
       ('anna', 'prune_inbox', 'monthly', '{"before": "2025-01-01T00:00:00+00:00"}', 2, 'done'),
       ('ben', 'discard', 'test data', '{}', 0, 'refused'),
       ('ben', 'discard', 'test data', '{}', 0, 'failed');
INSERT INTO sea_mq_consumers (stream, durable, handler, subjects, seen_at)
VALUES ('BILLING_EVENTS', 'orders__from_billing', 'http://127.0.0.1:80 0123', '{billing.event.>}', '-infinity');
INSERT INTO sea_mq_standings (stream, durable, standing, missed) VALUES ('BILLING_EVENTS', 'orders__from_billing', '{}', 0);
