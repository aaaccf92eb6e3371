-- CreateTable
CREATE TABLE "file_locks" (
    "id" TEXT NOT NULL,
    "repository_id" TEXT NOT NULL,
    "path" TEXT NOT NULL,
    "owner_id" TEXT NOT NULL,
    "locked_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "file_locks_pkey" PRIMARY KEY ("id")
);

-- CreateIndex
CREATE INDEX "file_locks_repository_id_id_idx" ON "file_locks"("repository_id", "id");

-- CreateIndex
CREATE INDEX "file_locks_owner_id_idx" ON "file_locks"("owner_id");

-- CreateIndex
CREATE UNIQUE INDEX "file_locks_repository_id_path_key" ON "file_locks"("repository_id", "path");

-- AddForeignKey
ALTER TABLE "file_locks" ADD CONSTRAINT "file_locks_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "file_locks" ADD CONSTRAINT "file_locks_owner_id_fkey" FOREIGN KEY ("owner_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;
