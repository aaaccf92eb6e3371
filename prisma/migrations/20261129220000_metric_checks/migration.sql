-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "check_results" JSONB,
ADD COLUMN     "checks" JSONB NOT NULL DEFAULT '[]';
