-- DropForeignKey
ALTER TABLE "journal_pages" DROP CONSTRAINT "journal_pages_job_id_fkey";

-- CreateTable
CREATE TABLE "deleted_journals" (
    "job_id" TEXT NOT NULL,

    CONSTRAINT "deleted_journals_pkey" PRIMARY KEY ("job_id")
);

-- By hand from here: whatever deletes a job, its pages are found.
CREATE FUNCTION note_deleted_journal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO deleted_journals (job_id)
    SELECT OLD.id WHERE EXISTS (SELECT FROM journal_pages WHERE job_id = OLD.id);
    RETURN NULL;
END
$$;

CREATE TRIGGER note_deleted_journal AFTER DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION note_deleted_journal();
