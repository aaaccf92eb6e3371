-- DropIndex
DROP INDEX "jobs_repository_id_idx";

-- CreateTable
CREATE TABLE "job_labels" (
    "job_id" TEXT NOT NULL,
    "key" TEXT NOT NULL,
    "value" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,

    CONSTRAINT "job_labels_pkey" PRIMARY KEY ("job_id","key")
);

-- CreateIndex
CREATE INDEX "job_labels_namespace_id_key_value_job_id_idx" ON "job_labels"("namespace_id", "key", "value", "job_id" DESC);

-- CreateIndex
CREATE INDEX "jobs_namespace_id_created_by_id_created_at_id_idx" ON "jobs"("namespace_id", "created_by_id", "created_at" DESC, "id" DESC);

-- CreateIndex
CREATE INDEX "jobs_repository_id_created_at_id_idx" ON "jobs"("repository_id", "created_at" DESC, "id" DESC);

-- CreateIndex
CREATE INDEX "jobs_name_prefix" ON "jobs"("namespace_id", "name" text_pattern_ops);

-- AddForeignKey
ALTER TABLE "job_labels" ADD CONSTRAINT "job_labels_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- How often a label is, for PostgreSQL to choose between the label's index and the order of creation. The columns depend
-- on each other, so that their own frequencies multiplied are far too low. Prisma knows no such statistics.
CREATE STATISTICS "job_labels_frequencies" (mcv) ON "namespace_id", "key", "value" FROM "job_labels";
