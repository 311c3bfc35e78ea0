-- Spark's statement of the report: counts of the period from since to until, by kind.
-- A fact is a thing to count. `step` is the length in seconds of the bins that facts of its kind are counted by;
-- null: they are counted over the whole period. `duration` is a class of durations that differ by at most 2 %.
WITH event AS (
    SELECT *, string(floor(50 * ln(greatest(seconds, 1e-6)))) AS duration
      FROM (SELECT *, greatest(unix_micros(published_at) - unix_micros(occurred_at), 0) / 1e6 AS seconds FROM {events})
), message AS (
    SELECT *, string(floor(50 * ln(greatest(seconds, 1e-6)))) AS duration
      FROM (SELECT *, greatest(unix_micros(processed_at) - unix_micros(received_at), 0) / 1e6 AS seconds FROM {messages})
), fact AS (
    SELECT kind, at, step, name, detail, 1 AS events, bytes, seconds
      FROM event LATERAL VIEW stack(6,
        'written', created_at, {step}, NULL, NULL, bigint(payload_bytes),
        'archived', if(archived, created_at, NULL), NULL, NULL, NULL, 0L,
        'published', published_at, {step},
            string(least(coalesce(publish_attempts, 0), {attempts_max})), duration, 0L,
        'keys', if(ordering_key IS NULL, NULL, created_at), NULL, ordering_key, NULL, bigint(payload_bytes),
        'types', created_at, NULL, event_type, NULL, bigint(payload_bytes),
        'dead', if(state = 'DEAD', created_at, NULL), NULL,
            left(substring_index(coalesce(publish_error, 'no error recorded'), ':', 1), 80), event_type, 0L
      ) f AS kind, at, step, name, detail, bytes
    UNION ALL
    SELECT kind, at, step, name, detail, 1, 0, seconds
      FROM message LATERAL VIEW stack(3,
        'received', received_at, {step}, NULL, NULL,
        'processed', processed_at, {step}, string(least(attempts, {attempts_max})), duration,
        'dead_lettered', dead_lettered_at, NULL, NULL, NULL
      ) f AS kind, at, step, name, detail
    UNION ALL
    SELECT kind, time, step, name, detail, 1, 0, 0
      FROM {letters} LATERAL VIEW stack(2,
        'dead_letters', NULL, reason, subject,
        'dead_letter_bins', {step}, if(array_contains(split({reasons}, ' '), reason), reason, 'others'), NULL
      ) f AS kind, step, name, detail
    UNION ALL
    -- gold has minutes: one that overlaps the period counts whole, and no bin is shorter
    SELECT 'stream_bins', greatest(minute, TIMESTAMP {since}), greatest({step}, 60), coalesce(context, 'unknown'), NULL, events, 0, 0
      FROM {minutes} WHERE minute > TIMESTAMP {since} - INTERVAL 1 MINUTE
), counted AS (
    SELECT kind, timestamp_seconds(floor(unix_seconds(at) / step) * step) AS at, name, detail, sum(events) AS count,
           coalesce(sum(bytes), 0) AS size, max(seconds) AS seconds, max(fact.at) AS latest
      FROM fact
     WHERE fact.at >= TIMESTAMP {since} AND fact.at < TIMESTAMP {until}
     GROUP BY 1, 2, 3, 4
)
SELECT *
  FROM (SELECT *, row_number() OVER (PARTITION BY kind ORDER BY count DESC, size DESC, name, detail) AS place,
               count(*) OVER (PARTITION BY kind) AS distinct, sum(count) OVER (PARTITION BY kind) AS total
          FROM counted)
 WHERE at IS NOT NULL OR place <= {groups_max}
 ORDER BY kind, at, place
