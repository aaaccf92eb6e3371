-- AlterTable
ALTER TABLE "job_attempts" ADD COLUMN     "cpus" INTEGER,
ADD COLUMN     "memory_bytes" BIGINT,
ADD COLUMN     "shared" BOOLEAN NOT NULL DEFAULT false;

-- CreateTable
CREATE TABLE "queue_shares" (
    "namespace_id" TEXT NOT NULL,
    "held" INTEGER NOT NULL DEFAULT 0,
    "served_at" TIMESTAMPTZ(6) NOT NULL DEFAULT 'epoch'::timestamptz,

    CONSTRAINT "queue_shares_pkey" PRIMARY KEY ("namespace_id")
);

-- CreateTable
CREATE TABLE "queue_lines" (
    "namespace_id" TEXT NOT NULL,
    "gpu" TEXT NOT NULL,
    "region" TEXT NOT NULL,
    "waiting" INTEGER NOT NULL DEFAULT 0,
    "open" BOOLEAN NOT NULL DEFAULT false,
    "head" TEXT NOT NULL DEFAULT '',
    "held" INTEGER NOT NULL DEFAULT 0,
    "served_at" TIMESTAMPTZ(6) NOT NULL DEFAULT 'epoch'::timestamptz,
    "line_served_at" TIMESTAMPTZ(6) NOT NULL DEFAULT 'epoch'::timestamptz,

    CONSTRAINT "queue_lines_pkey" PRIMARY KEY ("namespace_id","gpu","region")
);

-- CreateIndex
CREATE INDEX "queue_order" ON "queue_lines"("gpu", "held", "served_at", "namespace_id", "line_served_at", "region") WHERE (open);

-- CreateIndex
CREATE INDEX "jobs_postponed" ON "jobs"("available_at") WHERE (status = 'queued' AND attempt_id IS NULL AND available_at > created_at);

-- AddForeignKey
ALTER TABLE "queue_shares" ADD CONSTRAINT "queue_shares_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "queue_lines" ADD CONSTRAINT "queue_lines_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- By hand from here: what waits and what is held is counted as it changes, so that the next in turn is the first
-- entry of an index. These rows change with every job, so they are cleaned often, and have room to change in place.
ALTER TABLE "queue_shares" SET (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
ALTER TABLE "queue_lines" SET (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

INSERT INTO queue_shares (namespace_id, held, served_at)
SELECT n.id, COALESCE(j.held, 0), COALESCE(t.served_at, 'epoch')
FROM namespaces n
LEFT JOIN (SELECT namespace_id, count(*) AS held FROM jobs WHERE attempt_id IS NOT NULL GROUP BY 1) j
    ON j.namespace_id = n.id
LEFT JOIN queue_turns t ON t.namespace_id = n.id
WHERE j.held IS NOT NULL OR t.served_at IS NOT NULL;

INSERT INTO queue_lines (namespace_id, gpu, region, waiting, open, head, held, served_at)
SELECT w.namespace_id, w.gpu, w.region, w.waiting, true, w.head,
    COALESCE(s.held, 0), COALESCE(s.served_at, 'epoch')
FROM (
    SELECT namespace_id, gpu, region, count(*) AS waiting, min(id) AS head FROM jobs
    WHERE status = 'queued' AND attempt_id IS NULL GROUP BY 1, 2, 3
) w LEFT JOIN queue_shares s USING (namespace_id);

DROP TABLE "queue_turns";

-- Every change but one: that a job which waited is held, which the claim counts itself, once for many jobs.
-- The row of the namespace is locked first, and by all who change its counts. It is done at the very end of a
-- transaction (the triggers are deferred): who holds that lock waits for nobody, and others wait for a commit alone.
CREATE FUNCTION count_queue() RETURNS trigger LANGUAGE plpgsql AS $$
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

    PERFORM FROM queue_shares WHERE namespace_id = job.namespace_id FOR UPDATE;
    IF NOT FOUND THEN
        -- Its namespace may be gone with it.
        IF TG_OP = 'DELETE' THEN RETURN NULL; END IF;
        INSERT INTO queue_shares (namespace_id) VALUES (job.namespace_id) ON CONFLICT DO NOTHING;
        PERFORM FROM queue_shares WHERE namespace_id = job.namespace_id FOR UPDATE;
    END IF;
    IF change <> 0 THEN
        UPDATE queue_shares SET held = held + change WHERE namespace_id = job.namespace_id;
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

CREATE CONSTRAINT TRIGGER count_queue_of_new AFTER INSERT ON jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.status = 'queued' OR NEW.attempt_id IS NOT NULL)
    EXECUTE FUNCTION count_queue();

CREATE CONSTRAINT TRIGGER count_queue_of_moved AFTER UPDATE OF status, attempt_id ON jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (
        (OLD.attempt_id IS NOT NULL AND NEW.attempt_id IS NULL)
        OR (OLD.attempt_id IS NULL AND NEW.attempt_id IS NOT NULL AND OLD.status <> 'queued')
        OR (OLD.attempt_id IS NULL AND NEW.attempt_id IS NULL
            AND (OLD.status = 'queued') <> (NEW.status = 'queued'))
    )
    EXECUTE FUNCTION count_queue();

CREATE CONSTRAINT TRIGGER count_queue_of_deleted AFTER DELETE ON jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.status = 'queued' OR OLD.attempt_id IS NOT NULL)
    EXECUTE FUNCTION count_queue();
