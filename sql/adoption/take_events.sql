-- Takes over the events, once the migration has created the table and before it creates indexes and triggers.
-- The old worker counts an attempt only together with its result. So an event that is not published may be in the
-- stream: it is adopted as attempted since it was created, and the worker looks for it there before it publishes it.
ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_pkey;

INSERT INTO outbox_events (
    id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id, causation_id,
    created_at, available_at, state, publish_attempts, published_at, publish_error)
SELECT id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id, causation_id,
       created.at, created.at, 'PUBLISHED', greatest(publish_attempts, 0), published_at, publish_error
  FROM sds047_outbox_events
 CROSS JOIN LATERAL (SELECT greatest(least(occurred_at, now()), '0001-01-01 00:00:00+00') AS at) created
 WHERE published_at IS NOT NULL;

INSERT INTO outbox_events (
    id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id, causation_id,
    created_at, available_at, state, publish_attempts, first_attempt_at, failures, publish_error)
SELECT id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id, causation_id,
       created.at, CASE WHEN never.why IS NULL THEN greatest(occurred_at, now()) ELSE now() END,
       CASE WHEN never.why IS NULL THEN 'PENDING' ELSE 'DEAD' END,
       greatest(publish_attempts, 1), created.at, 0, coalesce(never.why, publish_error)
  FROM sds047_outbox_events
 CROSS JOIN LATERAL (SELECT greatest(least(occurred_at, now()), '0001-01-01 00:00:00+00') AS at) created
 CROSS JOIN LATERAL (
    SELECT CASE WHEN occurred_at < '0001-01-01 00:00:00+00' OR occurred_at >= '9999-12-31 00:00:00+00'
                THEN 'INVALID_OUTBOX: a time is not within the years 1 to 9999'
                WHEN occurred_at > now() + INTERVAL '1 minute'
                THEN 'FUTURE_EVENT: occurred_at is in the future (POL-047-002)' END AS why) never
 WHERE published_at IS NULL
 ORDER BY occurred_at, id;

ALTER TABLE outbox_events ADD CONSTRAINT outbox_events_pkey PRIMARY KEY (id);
