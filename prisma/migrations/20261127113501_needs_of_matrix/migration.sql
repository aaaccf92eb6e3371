-- AlterTable
ALTER TABLE "job_needs" ADD COLUMN     "run_job" TEXT;
