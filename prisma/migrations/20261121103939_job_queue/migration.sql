-- DropIndex
DROP INDEX "events_namespace_id_seq_idx";

-- DropIndex
DROP INDEX "events_subject_seq_idx";

-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "attempt_id" TEXT;

-- CreateTable
CREATE TABLE "workers" (
    "id" TEXT NOT NULL,
    "runner" TEXT NOT NULL,
    "offers" JSONB NOT NULL,
    "heartbeat_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "workers_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "queue_turns" (
    "namespace_id" TEXT NOT NULL,
    "served_at" TIMESTAMPTZ(6) NOT NULL,

    CONSTRAINT "queue_turns_pkey" PRIMARY KEY ("namespace_id")
);

-- CreateIndex
CREATE INDEX "events_namespace_id_xid_seq_idx" ON "events"("namespace_id", "xid", "seq");

-- CreateIndex
CREATE INDEX "events_subject_xid_seq_idx" ON "events"("subject", "xid", "seq");

-- CreateIndex
CREATE INDEX "job_attempts_open" ON "job_attempts"("worker_id") WHERE (ended_at IS NULL);

-- CreateIndex
CREATE INDEX "jobs_waiting" ON "jobs"("gpu", "region", "namespace_id", "id") WHERE (status = 'queued' AND attempt_id IS NULL);

-- CreateIndex
CREATE INDEX "jobs_held" ON "jobs"("namespace_id", "id") WHERE (attempt_id IS NOT NULL);

-- AddForeignKey
ALTER TABLE "queue_turns" ADD CONSTRAINT "queue_turns_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;
