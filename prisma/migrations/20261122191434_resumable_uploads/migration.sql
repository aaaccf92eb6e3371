-- CreateTable
CREATE TABLE "large_uploads" (
    "repository_id" TEXT NOT NULL,
    "oid" TEXT NOT NULL,
    "size" BIGINT NOT NULL,
    "store_id" INTEGER NOT NULL,
    "bytes" BIGINT NOT NULL,
    "touched_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "large_uploads_pkey" PRIMARY KEY ("repository_id","oid")
);

-- CreateTable
CREATE TABLE "large_upload_pages" (
    "repository_id" TEXT NOT NULL,
    "oid" TEXT NOT NULL,
    "start" BIGINT NOT NULL,
    "chunks" BYTEA NOT NULL,

    CONSTRAINT "large_upload_pages_pkey" PRIMARY KEY ("repository_id","oid","start")
);

-- CreateIndex
CREATE INDEX "large_uploads_touched_at_idx" ON "large_uploads"("touched_at");

-- AddForeignKey
ALTER TABLE "large_uploads" ADD CONSTRAINT "large_uploads_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "large_upload_pages" ADD CONSTRAINT "large_upload_pages_repository_id_oid_fkey" FOREIGN KEY ("repository_id", "oid") REFERENCES "large_uploads"("repository_id", "oid") ON DELETE CASCADE ON UPDATE CASCADE;
