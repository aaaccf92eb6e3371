-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "repository_inputs" JSONB NOT NULL DEFAULT '[]';
