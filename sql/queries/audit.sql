-- The audit of operators.

-- name: audit
-- Operators' actions, the latest first. A running or interrupted action has no outcome.
-- Index: the primary key.
SELECT id, at, actor, action, reason, selection::text AS selection, affected,
       coalesce(outcome, 'open') AS outcome, login
  FROM operator_actions
 WHERE (:actor_like::text IS NULL OR strpos(lower(actor), lower(:actor_like)) > 0)
   AND (:action::text IS NULL OR action = :action)
   AND (:since::timestamptz IS NULL OR at >= :since)
   AND (:until::timestamptz IS NULL OR at < :until)
   AND (:before_id::bigint IS NULL OR id < :before_id)
 ORDER BY id DESC
 LIMIT :limit::bigint;
