-- Of no row, so nothing is written anew.
-- AlterTable
ALTER TABLE "job_attempts" ADD COLUMN     "exited_at" TIMESTAMPTZ(3);
