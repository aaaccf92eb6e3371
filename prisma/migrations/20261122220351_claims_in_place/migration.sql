-- A claim gives a job its attempt. While these indexes asked for a job without one, each claim wrote all indexes of `jobs`
-- anew; now it changes the row in place. What has an attempt and does not run yet stays in them: as many jobs as there
-- are slots.
-- DropIndex
DROP INDEX "jobs_postponed";

-- DropIndex
DROP INDEX "jobs_waiting";

-- CreateIndex
CREATE INDEX "jobs_waiting" ON "jobs"("gpu", "region", "namespace_id", "id") WHERE (status = 'queued');

-- CreateIndex
CREATE INDEX "jobs_postponed" ON "jobs"("available_at") WHERE (status = 'queued' AND available_at > created_at);

-- By hand from here: room to change in place, in pages that are filled from now on.
ALTER TABLE "jobs" SET (fillfactor = 80);

-- As in the migration before, but the rows of a namespace are found by their indexes also while the tables are small:
-- each of their dead versions, which stay while another transaction is open, was read otherwise. And the row of the
-- job is not copied.
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
