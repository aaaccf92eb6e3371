-- CreateTable
CREATE TABLE "job_shells" (
    "id" TEXT NOT NULL,
    "attempt_id" TEXT NOT NULL,
    "worker_id" TEXT NOT NULL,
    "username" TEXT NOT NULL,
    "credential_kind" TEXT,
    "credential_id" TEXT,
    "credential_name" TEXT,
    "address" TEXT,
    "command" TEXT,
    "terminal" BOOLEAN NOT NULL,
    "began_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "ended_by" TEXT,

    CONSTRAINT "job_shells_pkey" PRIMARY KEY ("id")
);

-- CreateIndex
CREATE INDEX "job_shells_attempt_id_idx" ON "job_shells"("attempt_id");

-- AddForeignKey
ALTER TABLE "job_shells" ADD CONSTRAINT "job_shells_attempt_id_fkey" FOREIGN KEY ("attempt_id") REFERENCES "job_attempts"("id") ON DELETE CASCADE ON UPDATE CASCADE;
