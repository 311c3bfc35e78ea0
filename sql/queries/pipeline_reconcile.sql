-- Queries of `pipeline reconcile` about the audit, in the snapshot of its tables.

-- name: actions
-- Replays explain further copies in a stream; prunes, archives and erasures explain rows that are gone. An erasure
-- counts no rows that only the lake had.
SELECT at, action, selection::text AS selection
  FROM operator_actions
 WHERE action IN ('replay', 'prune_outbox', 'prune_inbox', 'archive') AND affected > 0 OR action = 'erase'
 ORDER BY id;
