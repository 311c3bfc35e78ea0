-- Queries of `pipeline reconcile` about the audit, in the snapshot of its tables.

-- name: actions
-- Replays explain further copies in a stream; prunes and archives explain rows that are gone.
SELECT at, action, selection::text AS selection
  FROM operator_actions
 WHERE action IN ('replay', 'prune_outbox', 'prune_inbox', 'archive') AND affected > 0
 ORDER BY id;
