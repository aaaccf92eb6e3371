-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "artifacts_of" TEXT;

-- AlterTable
ALTER TABLE "kept_artifacts" ADD COLUMN     "artifacts_of" TEXT;
