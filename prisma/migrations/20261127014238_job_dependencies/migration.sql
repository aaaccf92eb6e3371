-- CreateEnum
CREATE TYPE "NeedCondition" AS ENUM ('succeeded', 'failed', 'finished');

-- CreateEnum
CREATE TYPE "GroupConflict" AS ENUM ('queue', 'cancel_running', 'skip');

-- CreateEnum
CREATE TYPE "SlotState" AS ENUM ('pending', 'waiting', 'holding');

-- DropIndex
DROP INDEX "jobs_waiting";

-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "array_id" TEXT,
ADD COLUMN     "array_index" INTEGER,
ADD COLUMN     "array_size" INTEGER,
ADD COLUMN     "blocked" BOOLEAN NOT NULL DEFAULT false,
ADD COLUMN     "concurrency_group" TEXT,
ADD COLUMN     "folded" BOOLEAN NOT NULL DEFAULT false,
ADD COLUMN     "on_conflict" "GroupConflict",
ADD COLUMN     "run_id" TEXT,
ADD COLUMN     "run_job" TEXT,
ADD COLUMN     "watched" BOOLEAN NOT NULL DEFAULT false;

-- CreateTable
CREATE TABLE "job_needs" (
    "job_id" TEXT NOT NULL,
    "needed_id" TEXT NOT NULL,
    "needed_name" TEXT NOT NULL,
    "condition" "NeedCondition" NOT NULL,
    "ended_as" "JobStatus",

    CONSTRAINT "job_needs_pkey" PRIMARY KEY ("job_id","needed_id")
);

-- CreateTable
CREATE TABLE "job_slots" (
    "job_id" TEXT NOT NULL,
    "group_key" TEXT NOT NULL,
    "unit" TEXT NOT NULL,
    "max_running" INTEGER NOT NULL,
    "on_conflict" "GroupConflict" NOT NULL,
    "state" "SlotState" NOT NULL,

    CONSTRAINT "job_slots_pkey" PRIMARY KEY ("job_id","group_key")
);

-- CreateTable
CREATE TABLE "job_arrays" (
    "id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "size" INTEGER NOT NULL,
    "max_parallel" INTEGER,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "job_arrays_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "job_changes" (
    "id" BIGSERIAL NOT NULL,
    "job_id" TEXT NOT NULL,

    CONSTRAINT "job_changes_pkey" PRIMARY KEY ("id")
);

-- CreateIndex
CREATE INDEX "job_needs_needed_id_idx" ON "job_needs"("needed_id");

-- CreateIndex
CREATE INDEX "job_slots_group_key_state_job_id_idx" ON "job_slots"("group_key", "state", "job_id");

-- CreateIndex
CREATE INDEX "job_arrays_namespace_id_idx" ON "job_arrays"("namespace_id");

-- CreateIndex
CREATE INDEX "jobs_waiting" ON "jobs"("gpu", "region", "namespace_id", "id") WHERE (status = 'queued' AND NOT blocked);

-- CreateIndex
CREATE INDEX "jobs_array_id_status_id_idx" ON "jobs"("array_id", "status", "id") WHERE (array_id IS NOT NULL);

-- CreateIndex
CREATE INDEX "jobs_run_id_id_idx" ON "jobs"("run_id", "id") WHERE (run_id IS NOT NULL);

-- AddForeignKey
ALTER TABLE "jobs" ADD CONSTRAINT "jobs_array_id_fkey" FOREIGN KEY ("array_id") REFERENCES "job_arrays"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "job_needs" ADD CONSTRAINT "job_needs_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "job_arrays" ADD CONSTRAINT "job_arrays_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- ---------------------------------------------------------------------------------------------------------------------
-- Functions and triggers.

-- As before, except that a blocked job is not in the queue. It enters the queue when it is unblocked, at the place of its id: the
-- head of its line moves back to it.
CREATE OR REPLACE FUNCTION count_queue()
RETURNS trigger
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    namespace TEXT;
    waited BOOLEAN := false;
    waits BOOLEAN := false;
    change INTEGER := 0;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        namespace := OLD.namespace_id;
        waited := OLD.status = 'queued' AND OLD.attempt_id IS NULL AND NOT OLD.blocked;
        change := change - (OLD.attempt_id IS NOT NULL)::int;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        namespace := NEW.namespace_id;
        waits := NEW.status = 'queued' AND NEW.attempt_id IS NULL AND NOT NEW.blocked;
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
        -- The namespace may have been deleted with the job.
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

DROP TRIGGER count_queue ON jobs;
CREATE CONSTRAINT TRIGGER count_queue AFTER INSERT OR DELETE OR UPDATE OF status, attempt_id, blocked ON jobs
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_queue();

-- Whatever deletes a watched job, cascades included: jobs that need it still know how it ended, and the loop releases its slots
-- and tells the run (`src/jobs/dependencies/loop.ts`).
CREATE FUNCTION note_deleted_watched_job()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF OLD.watched THEN
        UPDATE job_needs SET ended_as = OLD.status WHERE needed_id = OLD.id;
        INSERT INTO job_changes (job_id) VALUES (OLD.id);
    END IF;
    -- When the job that stands for an array in folded lists is deleted, the next one takes its place. Rows that the same
    -- statement deletes are no longer there when this runs.
    IF OLD.array_id IS NOT NULL AND NOT OLD.folded THEN
        UPDATE jobs SET folded = false WHERE id = (
            SELECT id FROM jobs WHERE array_id = OLD.array_id ORDER BY id LIMIT 1);
        IF NOT FOUND THEN DELETE FROM job_arrays WHERE id = OLD.array_id; END IF;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER note_deleted_watched_job AFTER DELETE ON jobs
FOR EACH ROW EXECUTE FUNCTION note_deleted_watched_job();

-- Wakes the loop whenever there is something to do.
CREATE FUNCTION notify_job_changes()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('loam', 'job-changes');
    RETURN NULL;
END
$$;

CREATE TRIGGER notify_job_changes AFTER INSERT ON job_changes
FOR EACH STATEMENT EXECUTE FUNCTION notify_job_changes();
