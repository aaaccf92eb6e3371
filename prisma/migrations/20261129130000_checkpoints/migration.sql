-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "checkpoint_minutes" INTEGER,
ADD COLUMN     "checkpoint_path" TEXT;

-- CreateTable
CREATE TABLE "checkpoints" (
    "id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "job_id" TEXT,
    "attempt_id" TEXT NOT NULL,
    "attempt" INTEGER NOT NULL,
    "is_current" BOOLEAN NOT NULL DEFAULT false,
    "size_bytes" BIGINT NOT NULL DEFAULT 0,
    "files" INTEGER NOT NULL DEFAULT 0,
    "fingerprint" TEXT,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "checkpoints_pkey" PRIMARY KEY ("id")
);

-- CreateIndex
CREATE INDEX "checkpoints_job_id_idx" ON "checkpoints"("job_id");

-- CreateIndex
CREATE UNIQUE INDEX "checkpoints_current" ON "checkpoints"("job_id") WHERE (is_current);

-- AddForeignKey
ALTER TABLE "checkpoints" ADD CONSTRAINT "checkpoints_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE RESTRICT ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "checkpoints" ADD CONSTRAINT "checkpoints_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE SET NULL ON UPDATE CASCADE;
