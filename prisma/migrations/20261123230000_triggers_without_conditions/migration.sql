-- A condition of a trigger (WHEN) is parsed and prepared anew for each statement that changes a job, 12 % of what a claim and
-- an end take of PostgreSQL. A function is prepared once for a connection, so the conditions stand in the functions now.

-- As it was, and prepared once for a connection too, which a function in SQL is not.
CREATE OR REPLACE FUNCTION count_storage(namespace TEXT, bytes BIGINT) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF bytes <> 0 THEN
        UPDATE namespaces SET storage_bytes = storage_bytes + bytes WHERE id = namespace;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION count_log_storage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM count_storage(OLD.namespace_id,
        CASE WHEN TG_OP = 'DELETE' THEN 0 ELSE stored_log(NEW.log_bytes, NEW.completed_at) END
        - stored_log(OLD.log_bytes, OLD.completed_at));
    RETURN NULL;
END
$$;

DROP TRIGGER count_log_storage ON jobs;
DROP TRIGGER count_deleted_log_storage ON jobs;
CREATE TRIGGER count_log_storage AFTER DELETE OR UPDATE OF log_bytes, completed_at ON jobs
    FOR EACH ROW EXECUTE FUNCTION count_log_storage();

-- As it was: a sum reads some forty rows, and a change in forty adds them up. A change is one statement for both rows.
CREATE OR REPLACE FUNCTION fold_list_counts(of_namespace TEXT, of_list TEXT) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM list_counts WHERE id = ANY(ARRAY(
            SELECT id FROM list_counts WHERE namespace_id = of_namespace AND list = of_list
            FOR UPDATE SKIP LOCKED))
        RETURNING value, started, completed, n)
    INSERT INTO list_counts (namespace_id, list, value, started, completed, n)
    SELECT of_namespace, of_list, value, started, completed, sum(n) FROM gone
    GROUP BY value, started, completed HAVING sum(n) <> 0;
END
$$;

CREATE OR REPLACE FUNCTION count_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    namespace TEXT;
BEGIN
    IF TG_OP = 'INSERT' THEN
        namespace := NEW.namespace_id;
        INSERT INTO list_counts (namespace_id, list, value, started, completed, n) VALUES
            (namespace, 'jobs', NEW.status, NEW.started_at IS NOT NULL, NEW.completed_at IS NOT NULL, 1);
    ELSIF TG_OP = 'DELETE' THEN
        namespace := OLD.namespace_id;
        INSERT INTO list_counts (namespace_id, list, value, started, completed, n) VALUES
            (namespace, 'jobs', OLD.status, OLD.started_at IS NOT NULL, OLD.completed_at IS NOT NULL, -1);
    ELSE
        namespace := NEW.namespace_id;
        IF OLD.namespace_id = namespace AND OLD.status = NEW.status
            AND (OLD.started_at IS NULL) = (NEW.started_at IS NULL)
            AND (OLD.completed_at IS NULL) = (NEW.completed_at IS NULL)
        THEN RETURN NULL; END IF;
        INSERT INTO list_counts (namespace_id, list, value, started, completed, n) VALUES
            (OLD.namespace_id, 'jobs', OLD.status, OLD.started_at IS NOT NULL, OLD.completed_at IS NOT NULL, -1),
            (namespace, 'jobs', NEW.status, NEW.started_at IS NOT NULL, NEW.completed_at IS NOT NULL, 1);
    END IF;
    IF random() < 0.025 THEN PERFORM fold_list_counts(namespace, 'jobs'); END IF;
    RETURN NULL;
END
$$;

DROP TRIGGER count_jobs ON jobs;
DROP TRIGGER count_changed_jobs ON jobs;
CREATE TRIGGER count_jobs AFTER INSERT OR DELETE OR UPDATE OF namespace_id, status, started_at, completed_at ON jobs
    FOR EACH ROW EXECUTE FUNCTION count_jobs();

-- As it was, with what the triggers asked for: all changes of what waits and what is held but one, that a job which waited
-- is held, which the claim counts itself.
CREATE OR REPLACE FUNCTION count_queue() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    namespace TEXT;
    waited BOOLEAN := false;
    waits BOOLEAN := false;
    change INTEGER := 0;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        namespace := OLD.namespace_id;
        waited := OLD.status = 'queued' AND OLD.attempt_id IS NULL;
        change := change - (OLD.attempt_id IS NOT NULL)::int;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        namespace := NEW.namespace_id;
        waits := NEW.status = 'queued' AND NEW.attempt_id IS NULL;
        change := change + (NEW.attempt_id IS NOT NULL)::int;
    END IF;
    IF (waited = waits AND change = 0) OR (waited AND change = 1) THEN RETURN NULL; END IF;

    LOOP
        IF change <> 0 THEN
            UPDATE queue_shares SET held = held + change WHERE namespace_id = namespace;
        ELSE
            PERFORM FROM queue_shares WHERE namespace_id = namespace FOR UPDATE;
        END IF;
        EXIT WHEN FOUND;
        -- Its namespace may be gone with it.
        IF TG_OP = 'DELETE' THEN RETURN NULL; END IF;
        INSERT INTO queue_shares (namespace_id) VALUES (namespace) ON CONFLICT DO NOTHING;
    END LOOP;
    IF change <> 0 THEN
        UPDATE queue_lines SET held = held + change WHERE namespace_id = namespace AND open;
    END IF;
    IF waits AND NOT waited THEN
        INSERT INTO queue_lines AS l (namespace_id, gpu, region, waiting, open, head, held, served_at)
        SELECT s.namespace_id, NEW.gpu, NEW.region, 1, true, NEW.id, s.held, s.served_at
        FROM queue_shares s WHERE s.namespace_id = namespace
        ON CONFLICT (namespace_id, gpu, region) DO UPDATE SET
            waiting = l.waiting + 1, open = true,
            head = CASE WHEN l.open THEN LEAST(l.head, excluded.head) ELSE excluded.head END,
            held = excluded.held, served_at = excluded.served_at;
    ELSIF waited AND NOT waits THEN
        UPDATE queue_lines SET waiting = waiting - 1, open = waiting > 1
        WHERE namespace_id = namespace AND gpu = OLD.gpu AND region = OLD.region;
    END IF;
    RETURN NULL;
END
$$;

DROP TRIGGER count_queue_of_new ON jobs;
DROP TRIGGER count_queue_of_moved ON jobs;
DROP TRIGGER count_queue_of_deleted ON jobs;
CREATE CONSTRAINT TRIGGER count_queue AFTER INSERT OR DELETE OR UPDATE OF status, attempt_id ON jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_queue();
