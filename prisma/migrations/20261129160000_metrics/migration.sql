-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "metric_points" BIGINT NOT NULL DEFAULT 0;

-- CreateTable
CREATE TABLE "metric_pages" (
    "id" BIGSERIAL NOT NULL,
    "job_id" TEXT NOT NULL,
    "attempt" INTEGER NOT NULL,
    "data" BYTEA NOT NULL,

    CONSTRAINT "metric_pages_pkey" PRIMARY KEY ("job_id","id")
);

-- CreateTable
CREATE TABLE "metric_chunks" (
    "job_id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "first" BIGINT NOT NULL,
    "attempt" INTEGER NOT NULL,
    "points" INTEGER NOT NULL,
    "min_step" BIGINT NOT NULL,
    "max_step" BIGINT NOT NULL,
    "overview" BYTEA NOT NULL,
    "data" BYTEA NOT NULL,

    CONSTRAINT "metric_chunks_pkey" PRIMARY KEY ("job_id","name","first")
);

-- CreateTable
CREATE TABLE "job_metrics" (
    "job_id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "points" BIGINT NOT NULL,
    "min" DOUBLE PRECISION,
    "max" DOUBLE PRECISION,
    "last" DOUBLE PRECISION NOT NULL,
    "last_step" BIGINT NOT NULL,
    "last_time" TIMESTAMPTZ(3) NOT NULL,
    "last_attempt" INTEGER NOT NULL,

    CONSTRAINT "job_metrics_pkey" PRIMARY KEY ("job_id","name")
);

-- AddForeignKey
ALTER TABLE "metric_pages" ADD CONSTRAINT "metric_pages_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "metric_chunks" ADD CONSTRAINT "metric_chunks_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "job_metrics" ADD CONSTRAINT "job_metrics_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE CASCADE ON UPDATE CASCADE;
