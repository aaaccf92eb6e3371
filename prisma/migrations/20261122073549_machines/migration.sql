-- AlterTable
ALTER TABLE "job_attempts" ADD COLUMN     "machine" TEXT NOT NULL DEFAULT 'local';

-- AlterTable
ALTER TABLE "workers" DROP COLUMN "offers",
ADD COLUMN     "machines" JSONB NOT NULL DEFAULT '[]';
