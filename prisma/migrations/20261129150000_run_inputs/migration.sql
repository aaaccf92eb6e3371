-- AlterTable
ALTER TABLE "runs" ADD COLUMN     "inputs" JSONB NOT NULL DEFAULT '[]';
