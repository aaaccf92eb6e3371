-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "inputs" JSONB NOT NULL DEFAULT '[]';
