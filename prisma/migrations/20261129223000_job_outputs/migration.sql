-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "outputs" JSONB,
ADD COLUMN     "outputs_of" TEXT[] DEFAULT ARRAY[]::TEXT[];
