-- Lets SDS-047's own statements settle events beside this worker's. Its `UPDATE outbox_events SET published_at = ...`
-- knows no state. An event that it finds PENDING, CLAIMED or DEAD becomes PUBLISHED, without a place in the stream; one
-- that is PUBLISHED stays as it is. A claim of this worker takes the old one to have tried the event since its insert,
-- because the old one leaves no trace before it has published: the worker accepts a duplicate as the event's own copy,
-- and looks for it in the stream where the deduplication window may be over.
CREATE FUNCTION outbox_published_by_old_worker() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF OLD.state = 'PUBLISHED' THEN
        RETURN OLD;
    END IF;
    NEW.state := 'PUBLISHED';
    NEW.claimed_at := NULL;
    NEW.claimed_by := NULL;
    NEW.publish_error := NULL;
    RETURN NEW;
END $$;

CREATE TRIGGER outbox_published_by_old_worker BEFORE UPDATE ON outbox_events FOR EACH ROW
    WHEN (NEW.state = OLD.state AND NEW.published_at IS NOT NULL AND NEW.published_at IS DISTINCT FROM OLD.published_at)
    EXECUTE FUNCTION outbox_published_by_old_worker();

CREATE FUNCTION outbox_tried_by_old_worker() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.publish_attempts := greatest(NEW.publish_attempts, 2);
    NEW.first_attempt_at := least(NEW.first_attempt_at, OLD.created_at);
    RETURN NEW;
END $$;

CREATE TRIGGER outbox_tried_by_old_worker BEFORE UPDATE ON outbox_events FOR EACH ROW
    WHEN (OLD.state = 'PENDING' AND NEW.state = 'CLAIMED')
    EXECUTE FUNCTION outbox_tried_by_old_worker();
