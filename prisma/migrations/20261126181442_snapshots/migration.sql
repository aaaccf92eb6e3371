-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "snapshot_id" TEXT;

-- CreateTable
CREATE TABLE "snapshots" (
    "repository_id" TEXT NOT NULL,
    "id" TEXT NOT NULL,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "snapshots_pkey" PRIMARY KEY ("repository_id","id")
);

-- CreateIndex
CREATE INDEX "snapshots_created_at_idx" ON "snapshots"("created_at");

-- CreateIndex
CREATE INDEX "jobs_snapshot_id_idx" ON "jobs"("snapshot_id") WHERE (snapshot_id IS NOT NULL);

-- AddForeignKey
ALTER TABLE "snapshots" ADD CONSTRAINT "snapshots_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;
