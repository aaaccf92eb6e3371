-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "idle_timeout_minutes" INTEGER,
ADD COLUMN     "max_cost" DECIMAL(14,4),
ADD COLUMN     "stop_reason" TEXT;
