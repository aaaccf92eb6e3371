-- CreateIndex
CREATE INDEX "job_arrays_namespace_id_name_id_idx" ON "job_arrays"("namespace_id", "name", "id");

-- DropIndex
DROP INDEX "job_arrays_namespace_id_idx";

-- AlterTable
ALTER TABLE "job_needs" ADD COLUMN     "array_id" TEXT;
