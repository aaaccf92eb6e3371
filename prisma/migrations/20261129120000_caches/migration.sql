-- AlterTable
ALTER TABLE "repositories" ADD COLUMN     "cache_bytes" BIGINT NOT NULL DEFAULT 0;

-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "cache" JSONB NOT NULL DEFAULT '[]',
ADD COLUMN     "cache_use" JSONB NOT NULL DEFAULT '[]';

-- AlterTable
ALTER TABLE "job_attempts" ADD COLUMN     "shell_opened" BOOLEAN NOT NULL DEFAULT false;

-- CreateTable
CREATE TABLE "job_caches" (
    "id" TEXT NOT NULL,
    "repository_id" TEXT NOT NULL,
    "scope" TEXT NOT NULL,
    "path" TEXT NOT NULL,
    "key" TEXT NOT NULL,
    "store_id" INTEGER NOT NULL,
    "oid" TEXT NOT NULL,
    "size" BIGINT NOT NULL,
    "content_bytes" BIGINT NOT NULL,
    "job_id" TEXT NOT NULL,
    "hits" INTEGER NOT NULL DEFAULT 0,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "used_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "job_caches_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "cache_lookups" (
    "repository_id" TEXT NOT NULL,
    "hits" BIGINT NOT NULL DEFAULT 0,
    "misses" BIGINT NOT NULL DEFAULT 0,

    CONSTRAINT "cache_lookups_pkey" PRIMARY KEY ("repository_id")
);

-- CreateIndex
CREATE INDEX "job_caches_repository_id_used_at_idx" ON "job_caches"("repository_id", "used_at");

-- CreateIndex
CREATE INDEX "job_caches_repository_id_id_idx" ON "job_caches"("repository_id", "id" DESC);

-- CreateIndex
CREATE INDEX "job_caches_used_at_idx" ON "job_caches"("used_at");

-- CreateIndex
CREATE UNIQUE INDEX "job_caches_repository_id_scope_path_key_key" ON "job_caches"("repository_id", "scope", "path", "key");

-- AddForeignKey
ALTER TABLE "cache_lookups" ADD CONSTRAINT "cache_lookups_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;
