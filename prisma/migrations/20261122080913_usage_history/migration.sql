-- CreateTable
CREATE TABLE "attempt_usage" (
    "attempt_id" TEXT NOT NULL,
    "samples_per_point" INTEGER NOT NULL DEFAULT 1,
    "times" TIMESTAMPTZ(3)[],
    "gpu_percent" INTEGER[],
    "cpu_percent" INTEGER[],
    "memory_bytes" BIGINT[],
    "disk_bytes" BIGINT[],

    CONSTRAINT "attempt_usage_pkey" PRIMARY KEY ("attempt_id")
);

-- AddForeignKey
ALTER TABLE "attempt_usage" ADD CONSTRAINT "attempt_usage_attempt_id_fkey" FOREIGN KEY ("attempt_id") REFERENCES "job_attempts"("id") ON DELETE CASCADE ON UPDATE CASCADE;
