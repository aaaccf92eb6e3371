-- AlterTable
ALTER TABLE "repositories" ADD COLUMN     "large_bytes" BIGINT NOT NULL DEFAULT 0;

-- CreateTable
CREATE TABLE "large_files" (
    "id" TEXT NOT NULL,
    "repository_id" TEXT NOT NULL,
    "oid" TEXT NOT NULL,
    "size" BIGINT NOT NULL,
    "store_id" INTEGER NOT NULL,
    "given_by_id" TEXT,
    "given_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "large_files_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "deleted_large_files" (
    "repository_id" TEXT NOT NULL,

    CONSTRAINT "deleted_large_files_pkey" PRIMARY KEY ("repository_id")
);

-- CreateTable
CREATE TABLE "large_stores" (
    "id" SERIAL NOT NULL,
    "repository_id" TEXT,

    CONSTRAINT "large_stores_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "large_objects" (
    "store_id" INTEGER NOT NULL,
    "oid" TEXT NOT NULL,
    "size" BIGINT NOT NULL,
    "holders" INTEGER NOT NULL,
    "touched_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "large_objects_pkey" PRIMARY KEY ("store_id","oid")
);

-- CreateTable
CREATE TABLE "large_recipes" (
    "store_id" INTEGER NOT NULL,
    "oid" TEXT NOT NULL,
    "start" BIGINT NOT NULL,
    "chunks" BYTEA NOT NULL,

    CONSTRAINT "large_recipes_pkey" PRIMARY KEY ("store_id","oid","start")
);

-- CreateTable
CREATE TABLE "large_chunks" (
    "store_id" INTEGER NOT NULL,
    "hash" BYTEA NOT NULL,
    "pack_id" INTEGER NOT NULL,
    "start" INTEGER NOT NULL,
    "length" INTEGER NOT NULL,
    "uses" INTEGER NOT NULL DEFAULT 0,
    "unused_since" TIMESTAMPTZ(6) DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "large_chunks_pkey" PRIMARY KEY ("store_id","hash")
);

-- CreateTable
CREATE TABLE "large_packs" (
    "id" SERIAL NOT NULL,
    "store_id" INTEGER NOT NULL,
    "key" TEXT NOT NULL,
    "bytes" INTEGER NOT NULL DEFAULT 0,
    "live_bytes" INTEGER NOT NULL DEFAULT 0,
    "tier" INTEGER,
    "state" TEXT NOT NULL DEFAULT 'putting',
    "since" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "changed" BOOLEAN NOT NULL DEFAULT false,

    CONSTRAINT "large_packs_pkey" PRIMARY KEY ("id")
);

-- CreateIndex
CREATE INDEX "large_files_repository_id_id_idx" ON "large_files"("repository_id", "id" DESC);

-- CreateIndex
CREATE UNIQUE INDEX "large_files_repository_id_oid_key" ON "large_files"("repository_id", "oid");

-- CreateIndex
CREATE UNIQUE INDEX "large_stores_repository_id_key" ON "large_stores"("repository_id");

-- CreateIndex
CREATE INDEX "large_stores_left" ON "large_stores"("id") WHERE (repository_id IS NULL);

-- CreateIndex
CREATE INDEX "large_objects_unused" ON "large_objects"("touched_at") WHERE (holders = 0);

-- CreateIndex
CREATE INDEX "large_chunks_pack_id_idx" ON "large_chunks"("pack_id");

-- CreateIndex
CREATE INDEX "large_chunks_unused" ON "large_chunks"("unused_since") WHERE (unused_since IS NOT NULL);

-- CreateIndex
CREATE INDEX "large_packs_small" ON "large_packs"("store_id", "tier") WHERE (state = 'kept' AND tier IS NOT NULL);

-- CreateIndex
CREATE INDEX "large_packs_changed" ON "large_packs"("id") WHERE (changed);

-- CreateIndex
CREATE INDEX "large_packs_passing" ON "large_packs"("since") WHERE (state <> 'kept');

-- AddForeignKey
ALTER TABLE "large_stores" ADD CONSTRAINT "large_stores_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE SET NULL ON UPDATE CASCADE;


-- By hand from here: hashes do not compress.
ALTER TABLE "large_recipes" ALTER COLUMN "chunks" SET STORAGE EXTERNAL;

-- That of all repositories with content_addressed.
INSERT INTO large_stores (repository_id) VALUES (NULL);

-- Whatever deletes a repository, its large files are found.
CREATE FUNCTION note_deleted_large_files() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO deleted_large_files (repository_id)
    SELECT OLD.id WHERE EXISTS (SELECT FROM large_files WHERE repository_id = OLD.id);
    RETURN NULL;
END
$$;

CREATE TRIGGER note_deleted_large_files AFTER DELETE ON repositories
    FOR EACH ROW EXECUTE FUNCTION note_deleted_large_files();
