-- Event types that operators resumed, for workers.

-- name: resumed
-- Event types that operators resumed recently, by the audit, and how long ago; an empty type means all. Workers
-- query only while an event type is slow. Index: the primary key, from its end on.
-- $1 seconds.
SELECT latest.selection ->> 'event_type'::text AS event_type,
       extract(epoch FROM clock_timestamp() - latest.at)::float8 AS seconds_ago
  FROM (SELECT a.at, a.action, a.selection FROM operator_actions a ORDER BY a.id DESC LIMIT 1000) latest
 WHERE latest.action = 'resume' AND latest.at >= clock_timestamp() - $1::float8 * interval '1 second';
