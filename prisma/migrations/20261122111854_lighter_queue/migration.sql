-- With each claim and each end of a job this index was written, and it was empty whenever statistics were taken: so the
-- planner took it, and walked it whole, for jobs that are found by their ids. What runs for a namespace is found by
-- its status.
-- DropIndex
DROP INDEX "jobs_held";

-- As in the migration before, but a change of what is held locks the row by changing it, without a lock taken before.
CREATE OR REPLACE FUNCTION count_queue() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    job jobs;
    waited BOOLEAN := false;
    waits BOOLEAN := false;
    change INTEGER := 0;
BEGIN
    IF TG_OP = 'DELETE' THEN job := OLD; ELSE job := NEW; END IF;
    IF TG_OP <> 'INSERT' THEN
        waited := OLD.status = 'queued' AND OLD.attempt_id IS NULL;
        change := change - (OLD.attempt_id IS NOT NULL)::int;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        waits := NEW.status = 'queued' AND NEW.attempt_id IS NULL;
        change := change + (NEW.attempt_id IS NOT NULL)::int;
    END IF;

    LOOP
        IF change <> 0 THEN
            UPDATE queue_shares SET held = held + change WHERE namespace_id = job.namespace_id;
        ELSE
            PERFORM FROM queue_shares WHERE namespace_id = job.namespace_id FOR UPDATE;
        END IF;
        EXIT WHEN FOUND;
        -- Its namespace may be gone with it.
        IF TG_OP = 'DELETE' THEN RETURN NULL; END IF;
        INSERT INTO queue_shares (namespace_id) VALUES (job.namespace_id) ON CONFLICT DO NOTHING;
    END LOOP;
    IF change <> 0 THEN
        UPDATE queue_lines SET held = held + change WHERE namespace_id = job.namespace_id AND open;
    END IF;
    IF waits AND NOT waited THEN
        INSERT INTO queue_lines AS l (namespace_id, gpu, region, waiting, open, head, held, served_at)
        SELECT s.namespace_id, job.gpu, job.region, 1, true, job.id, s.held, s.served_at
        FROM queue_shares s WHERE s.namespace_id = job.namespace_id
        ON CONFLICT (namespace_id, gpu, region) DO UPDATE SET
            waiting = l.waiting + 1, open = true,
            head = CASE WHEN l.open THEN LEAST(l.head, excluded.head) ELSE excluded.head END,
            held = excluded.held, served_at = excluded.served_at;
    ELSIF waited AND NOT waits THEN
        UPDATE queue_lines SET waiting = waiting - 1, open = waiting > 1
        WHERE namespace_id = job.namespace_id AND gpu = job.gpu AND region = job.region;
    END IF;
    RETURN NULL;
END
$$;
