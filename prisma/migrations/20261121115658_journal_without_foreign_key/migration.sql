-- DropForeignKey
ALTER TABLE "journal" DROP CONSTRAINT "journal_job_id_fkey";
