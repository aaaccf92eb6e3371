-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "held_at" TIMESTAMPTZ(3),
ADD COLUMN     "held_exit_code" INTEGER,
ADD COLUMN     "held_until" TIMESTAMPTZ(3),
ADD COLUMN     "hold_on_failure_minutes" INTEGER NOT NULL DEFAULT 0;

