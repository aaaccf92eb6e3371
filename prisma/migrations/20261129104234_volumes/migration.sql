-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "volumes" JSONB NOT NULL DEFAULT '[]';

-- CreateTable
CREATE TABLE "volume_usage" (
    "name" TEXT NOT NULL,
    "bytes" BIGINT,
    "measured_at" TIMESTAMPTZ(3),
    "due_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "last_used_at" TIMESTAMPTZ(3),

    CONSTRAINT "volume_usage_pkey" PRIMARY KEY ("name")
);

