-- Ends what beside_old_worker.sql began.
DROP TRIGGER IF EXISTS outbox_published_by_old_worker ON outbox_events;
DROP TRIGGER IF EXISTS outbox_tried_by_old_worker ON outbox_events;
DROP FUNCTION IF EXISTS outbox_published_by_old_worker, outbox_tried_by_old_worker;
