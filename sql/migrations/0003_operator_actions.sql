-- Who changed what by hand: every replay, mark_dead, redrive and prune leaves one row.

CREATE TABLE operator_actions (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    reason TEXT NOT NULL,
    -- the filter that was given, as the operator gave it
    selection JSONB NOT NULL,
    affected INT NOT NULL,
    -- null: under way, or cut short
    outcome TEXT,
    CONSTRAINT chk_action_outcome CHECK (outcome IN ('done', 'refused', 'failed'))
);

COMMENT ON TABLE operator_actions IS 'Audit record of operator actions (Open Outbox, operator).';

-- A role that may count an action up cannot rewrite it: its counts only grow, and once it has its outcome it stays as
-- it is.
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
