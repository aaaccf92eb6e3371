-- CreateEnum
CREATE TYPE "CommitState" AS ENUM ('pending', 'success', 'failure', 'error');

-- CreateTable
CREATE TABLE "commit_statuses" (
    "repository_id" TEXT NOT NULL,
    "sha" TEXT NOT NULL,
    "context" TEXT NOT NULL,
    "state" "CommitState" NOT NULL,
    "description" TEXT,
    "target_url" TEXT,
    "creator" TEXT NOT NULL,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updated_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "commit_statuses_pkey" PRIMARY KEY ("repository_id","sha","context")
);

-- AddForeignKey
ALTER TABLE "commit_statuses" ADD CONSTRAINT "commit_statuses_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;
