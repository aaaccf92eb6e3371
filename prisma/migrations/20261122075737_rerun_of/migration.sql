-- DropIndex
-- Prisma reads it back as another one than it wrote, and would make it anew with each migration.
DROP INDEX "jobs_name_prefix";

-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "rerun_of_id" TEXT;
