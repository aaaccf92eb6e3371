-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "matrix_values" JSONB;
