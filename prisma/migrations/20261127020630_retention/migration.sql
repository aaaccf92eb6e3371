-- AlterTable
ALTER TABLE "kept_artifacts" ADD COLUMN     "exempt" BOOLEAN NOT NULL DEFAULT false;

-- CreateTable
CREATE TABLE "retention_rules" (
    "namespace_id" TEXT NOT NULL,
    "job_days" INTEGER,
    "log_days" INTEGER,
    "artifact_days" INTEGER,
    "jobs_until" TIMESTAMPTZ(3),
    "logs_until" TIMESTAMPTZ(3),
    "artifacts_until" TIMESTAMPTZ(3),
    "updated_by" TEXT NOT NULL,
    "updated_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "retention_rules_pkey" PRIMARY KEY ("namespace_id")
);

-- AddForeignKey
ALTER TABLE "retention_rules" ADD CONSTRAINT "retention_rules_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- As before, but retention may have noted the log of the job already, and its pages are still being removed.
CREATE OR REPLACE FUNCTION note_deleted_journal()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO deleted_journals (job_id)
    SELECT OLD.id WHERE EXISTS (SELECT FROM journal_pages WHERE job_id = OLD.id)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
