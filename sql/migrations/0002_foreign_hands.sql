-- What other tools and other logins do to the tables.
-- Serves workers from version 1.

-- A counter at the end of its type stays there, so that its event can still be claimed, and end.
CREATE OR REPLACE TRIGGER outbox_transition AFTER UPDATE ON outbox_events FOR EACH ROW
    WHEN (
        CASE OLD.state
            WHEN 'PENDING' THEN
                NEW.state NOT IN ('PENDING', 'CLAIMED')
                OR NEW.publish_attempts < OLD.publish_attempts
                OR (NEW.state = 'CLAIMED'
                    AND (NEW.publish_attempts <= OLD.publish_attempts AND OLD.publish_attempts < 2147483647
                         OR OLD.available_at > NOW()))
            WHEN 'CLAIMED' THEN
                NEW.publish_attempts < OLD.publish_attempts
                OR (NEW.state = 'CLAIMED'
                    AND (NEW.claimed_by IS DISTINCT FROM OLD.claimed_by OR NEW.claimed_at < OLD.claimed_at))
            WHEN 'PUBLISHED' THEN
                NEW.state NOT IN ('PUBLISHED', 'PENDING')
                OR (NEW.state = 'PUBLISHED'
                    AND (NEW.published_at IS DISTINCT FROM OLD.published_at
                         OR NEW.publish_attempts < OLD.publish_attempts))
            ELSE
                NEW.state NOT IN ('DEAD', 'PENDING')
                OR (NEW.state = 'DEAD' AND NEW.publish_attempts < OLD.publish_attempts)
        END
    )
    EXECUTE FUNCTION outbox_reject('this transition is not in the lifecycle');

-- An update that moves a row to another partition fires no trigger AFTER UPDATE, and a row-level trigger BEFORE UPDATE
-- would make each claim compute the generated columns again. So no statement may name the ID.
CREATE FUNCTION outbox_reject_key() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'outbox_events: immutable columns do not change, nor does the id'
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
END $$;

CREATE TRIGGER outbox_key BEFORE UPDATE OF id ON outbox_events FOR EACH STATEMENT
    EXECUTE FUNCTION outbox_reject_key();

COMMENT ON TRIGGER outbox_key ON outbox_events IS 'Refuses a statement that sets the ID.';

-- A trigger of somebody else BEFORE UPDATE can change columns that the statement does not name, and outbox_immutable
-- does not look then. PostgreSQL computes bytes again where such a trigger exists. Contents of the same length are not
-- compared, because that would read every payload again at each change; `doctor` names the trigger.
CREATE TRIGGER outbox_unaltered AFTER UPDATE ON outbox_events FOR EACH ROW
    WHEN (OLD.bytes <> NEW.bytes OR OLD.seq <> NEW.seq OR OLD.event_type <> NEW.event_type
          OR OLD.event_version <> NEW.event_version OR OLD.occurred_at <> NEW.occurred_at)
    EXECUTE FUNCTION outbox_reject('immutable columns do not change, not even by a trigger');

COMMENT ON TRIGGER outbox_unaltered ON outbox_events IS
    'Refuses a change of what the producer wrote that another trigger makes, except for contents of the same length.';

-- A full queue of notifications would make the producer's COMMIT fail. Below its end nothing is sent, and a relay finds
-- the events when it polls. To ask how full the queue is also frees what all listeners have read.
CREATE OR REPLACE FUNCTION outbox_notify() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('sea_mq.notify', true) IS NOT DISTINCT FROM 'off' THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM added WHERE ordering_key IS NULL)
       AND NOT pg_try_advisory_xact_lock_shared(7177, hashtext(TG_TABLE_SCHEMA))
       AND pg_notification_queue_usage() < 0.9 THEN
        PERFORM pg_notify('outbox_events.' || hashtext(TG_TABLE_SCHEMA), 'unkeyed');
    END IF;
    IF EXISTS (SELECT FROM added WHERE ordering_key IS NOT NULL)
       AND NOT pg_try_advisory_xact_lock_shared(7179, hashtext(TG_TABLE_SCHEMA))
       AND pg_notification_queue_usage() < 0.9 THEN
        PERFORM pg_notify('outbox_events.' || hashtext(TG_TABLE_SCHEMA), 'keyed');
    END IF;
    RETURN NULL;
END $$;

-- A role that may delete finished messages could otherwise delete one that a worker handles, and another worker would
-- handle it at the same time. The tables' owner may delete any.
CREATE FUNCTION inbox_reject() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT pg_has_role((SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        RAISE EXCEPTION 'inbox_messages %: only its owner may delete a message that is neither processed nor dead-lettered',
            OLD.message_id
            USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER inbox_keep_open AFTER DELETE ON inbox_messages FOR EACH ROW
    WHEN (COALESCE(OLD.processed_at, OLD.dead_lettered_at) IS NULL)
    EXECUTE FUNCTION inbox_reject();

COMMENT ON TRIGGER inbox_keep_open ON inbox_messages IS
    'Refuses to delete a message that is neither processed nor dead-lettered, except by the owner.';

-- The actor is a name that the person gave; the login is known to the database. A record belongs to the login that
-- opened it.
ALTER TABLE operator_actions ADD COLUMN login TEXT;
ALTER TABLE operator_actions ALTER COLUMN login SET DEFAULT SESSION_USER;

COMMENT ON COLUMN operator_actions.login IS 'Login that opened the record; null: it is older than this column.';

CREATE FUNCTION operator_actions_own() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT pg_has_role((SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        RAISE EXCEPTION 'operator_actions %: only the login % that opened the record may continue or finish it',
            OLD.id, OLD.login
            USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER operator_actions_own BEFORE UPDATE ON operator_actions FOR EACH ROW
    WHEN (OLD.login <> SESSION_USER)
    EXECUTE FUNCTION operator_actions_own();

CREATE OR REPLACE TRIGGER operator_actions_grow BEFORE UPDATE ON operator_actions FOR EACH ROW
    WHEN (
        OLD.outcome IS NOT NULL
        OR (OLD.id, OLD.at, OLD.actor, OLD.action, OLD.reason, OLD.login) IS DISTINCT FROM
           (NEW.id, NEW.at, NEW.actor, NEW.action, NEW.reason, NEW.login)
        OR NEW.affected < OLD.affected
        OR OLD.selection - '{progress,dropped}'::text[] IS DISTINCT FROM NEW.selection - '{progress,dropped}'::text[]
        OR OLD.selection #> '{progress,as_given}' IS DISTINCT FROM NEW.selection #> '{progress,as_given}'
        OR COALESCE((NEW.selection #>> '{progress,through}')::bigint, -1)
           < COALESCE((OLD.selection #>> '{progress,through}')::bigint, -1)
        OR NOT COALESCE(NEW.selection -> 'dropped', '[]') @> COALESCE(OLD.selection -> 'dropped', '[]')
    )
    EXECUTE FUNCTION operator_actions_reject();

COMMENT ON TRIGGER operator_actions_own ON operator_actions IS
    'Refuses to change the record of another login, except by the owner.';

COMMENT ON TABLE handled_messages IS
    'Messages whose effect the service has committed (sea_mq_worker.producer.once).';
