-- The audit of operators: each of their changes leaves one row.

CREATE TABLE operator_actions (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    reason TEXT NOT NULL,
    selection JSONB NOT NULL,
    affected INT NOT NULL,
    outcome TEXT,
    CONSTRAINT chk_action_outcome CHECK (outcome IN ('done', 'refused', 'failed'))
);

COMMENT ON TABLE operator_actions IS 'Audit record of operator actions (Open Outbox, operator).';
COMMENT ON COLUMN operator_actions.id IS 'Number of the action.';
COMMENT ON COLUMN operator_actions.at IS 'Time at which it began.';
COMMENT ON COLUMN operator_actions.actor IS 'Person who did it; (page) after the name: on the page.';
COMMENT ON COLUMN operator_actions.action IS 'Name of the action, such as replay or prune_inbox.';
COMMENT ON COLUMN operator_actions.reason IS 'Reason that the person gave.';
COMMENT ON COLUMN operator_actions.selection IS 'Filter as the person gave it, and the progress.';
COMMENT ON COLUMN operator_actions.affected IS 'Number of events or messages that it changed.';
COMMENT ON COLUMN operator_actions.outcome IS 'done, refused or failed; null: it is running, or was interrupted.';

-- A role that may update an action cannot rewrite it: its counts only grow, and with its outcome it becomes immutable.
CREATE FUNCTION operator_actions_reject() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'operator_actions %: a record only grows until it has its outcome, and stays as it is then', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
END $$;

CREATE TRIGGER operator_actions_grow BEFORE UPDATE ON operator_actions FOR EACH ROW
    WHEN (
        OLD.outcome IS NOT NULL
        OR (OLD.id, OLD.at, OLD.actor, OLD.action, OLD.reason) IS DISTINCT FROM
           (NEW.id, NEW.at, NEW.actor, NEW.action, NEW.reason)
        OR NEW.affected < OLD.affected
        OR OLD.selection - '{progress,dropped}'::text[] IS DISTINCT FROM NEW.selection - '{progress,dropped}'::text[]
        OR OLD.selection #> '{progress,as_given}' IS DISTINCT FROM NEW.selection #> '{progress,as_given}'
        OR COALESCE((NEW.selection #>> '{progress,through}')::bigint, -1)
           < COALESCE((OLD.selection #>> '{progress,through}')::bigint, -1)
        OR NOT COALESCE(NEW.selection -> 'dropped', '[]') @> COALESCE(OLD.selection -> 'dropped', '[]')
    )
    EXECUTE FUNCTION operator_actions_reject();

COMMENT ON TRIGGER operator_actions_grow ON operator_actions IS
    'Refuses to change a record, except for its progress until it has an outcome.';
