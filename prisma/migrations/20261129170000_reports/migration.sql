-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "test_reports" TEXT[] DEFAULT ARRAY[]::TEXT[];

-- CreateTable
CREATE TABLE "job_summaries" (
    "job_id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "attempt" INTEGER NOT NULL,
    "text" TEXT NOT NULL,
    "size_bytes" BIGINT NOT NULL,

    CONSTRAINT "job_summaries_pkey" PRIMARY KEY ("job_id")
);

-- CreateTable
CREATE TABLE "test_reports" (
    "attempt_id" TEXT NOT NULL,
    "job_id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "repository_id" TEXT,
    "branch" TEXT,
    "attempt" INTEGER NOT NULL,
    "passed" INTEGER NOT NULL,
    "failed" INTEGER NOT NULL,
    "skipped" INTEGER NOT NULL,
    "files" INTEGER NOT NULL,
    "duration_ms" BIGINT NOT NULL,
    "problems" TEXT[],
    "passed_keys" BYTEA NOT NULL,
    "size_bytes" BIGINT NOT NULL,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "test_reports_pkey" PRIMARY KEY ("attempt_id")
);

-- CreateTable
CREATE TABLE "test_pages" (
    "attempt_id" TEXT NOT NULL,
    "first" INTEGER NOT NULL,
    "data" BYTEA NOT NULL,

    CONSTRAINT "test_pages_pkey" PRIMARY KEY ("attempt_id","first")
);

-- CreateIndex
CREATE INDEX "test_reports_job_id_attempt_idx" ON "test_reports"("job_id", "attempt");

-- CreateIndex
CREATE INDEX "test_reports_repository_id_branch_created_at_idx" ON "test_reports"("repository_id", "branch", "created_at" DESC);

-- AddForeignKey
ALTER TABLE "job_summaries" ADD CONSTRAINT "job_summaries_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "test_reports" ADD CONSTRAINT "test_reports_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "test_pages" ADD CONSTRAINT "test_pages_attempt_id_fkey" FOREIGN KEY ("attempt_id") REFERENCES "test_reports"("attempt_id") ON DELETE CASCADE ON UPDATE CASCADE;
