-- CreateTable
CREATE TABLE "kept_artifacts" (
    "id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "created_by_id" TEXT,
    "repository_id" TEXT,
    "output_path" TEXT NOT NULL,
    "size_bytes" BIGINT NOT NULL,
    "files" INTEGER NOT NULL,
    "removing" BOOLEAN NOT NULL DEFAULT false,
    "deleted_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "kept_artifacts_pkey" PRIMARY KEY ("id")
);

-- CreateIndex
CREATE INDEX "kept_artifacts_namespace_id_deleted_at_id_idx" ON "kept_artifacts"("namespace_id", "deleted_at" DESC, "id" DESC);

-- CreateIndex
CREATE INDEX "kept_artifacts_repository_id_idx" ON "kept_artifacts"("repository_id");

-- CreateIndex
CREATE INDEX "kept_artifacts_removing" ON "kept_artifacts"("id") WHERE (removing);

-- AddForeignKey
ALTER TABLE "kept_artifacts" ADD CONSTRAINT "kept_artifacts_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE RESTRICT ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "kept_artifacts" ADD CONSTRAINT "kept_artifacts_created_by_id_fkey" FOREIGN KEY ("created_by_id") REFERENCES "users"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "kept_artifacts" ADD CONSTRAINT "kept_artifacts_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- By hand from here: they are counted as storage, as the artifacts of jobs are.
CREATE FUNCTION count_kept_storage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN PERFORM count_storage(OLD.namespace_id, -OLD.size_bytes);
    ELSE PERFORM count_storage(NEW.namespace_id, NEW.size_bytes); END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER count_storage AFTER INSERT OR DELETE ON kept_artifacts
    FOR EACH ROW EXECUTE FUNCTION count_kept_storage();
