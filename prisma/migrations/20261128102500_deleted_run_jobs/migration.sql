-- CreateTable
CREATE TABLE "deleted_run_jobs" (
    "job_id" TEXT NOT NULL,
    "run_id" TEXT NOT NULL,
    "run_job" TEXT NOT NULL,
    "status" "JobStatus" NOT NULL,
    "started_at" TIMESTAMPTZ(3),
    "completed_at" TIMESTAMPTZ(3),

    CONSTRAINT "deleted_run_jobs_pkey" PRIMARY KEY ("job_id")
);

-- CreateIndex
CREATE INDEX "deleted_run_jobs_run_id_idx" ON "deleted_run_jobs"("run_id");

-- AddForeignKey
ALTER TABLE "deleted_run_jobs" ADD CONSTRAINT "deleted_run_jobs_run_id_fkey" FOREIGN KEY ("run_id") REFERENCES "runs"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- Whatever deletes a job of a run, a user or retention: the run keeps how it ended (`src/automation/runs/results.ts`). Otherwise a
-- job of the file would count as succeeded once the combination that failed is gone.
CREATE FUNCTION keep_result_of_run_job()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF OLD.run_id IS NOT NULL THEN
        INSERT INTO deleted_run_jobs (job_id, run_id, run_job, status, started_at, completed_at)
        SELECT OLD.id, r.id, OLD.run_job, OLD.status, OLD.started_at, OLD.completed_at
        FROM runs r WHERE r.id = OLD.run_id;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER keep_result_of_run_job AFTER DELETE ON jobs
FOR EACH ROW EXECUTE FUNCTION keep_result_of_run_job();
