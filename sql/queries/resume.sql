-- What operators let go on at full speed, as workers ask for it.

-- name: resumed
-- Event types that operators resumed of late, by the audit, and how long ago; an empty one stands for all. Workers ask
-- while an event type is slow, and only then. Index: the primary key, from its end on.
-- $1 seconds.
SELECT latest.selection ->> 'event_type'::text AS event_type,
       extract(epoch FROM clock_timestamp() - latest.at)::float8 AS seconds_ago
  FROM (SELECT a.at, a.action, a.selection FROM operator_actions a ORDER BY a.id DESC LIMIT 1000) latest
 WHERE latest.action = 'resume' AND latest.at >= clock_timestamp() - $1::float8 * interval '1 second';
