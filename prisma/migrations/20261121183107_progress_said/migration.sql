-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "progress_said" BOOLEAN NOT NULL DEFAULT false;

-- By hand: the phase of a running job is this one word, so whatever else stands there the program said.
UPDATE "jobs" SET "progress_said" = true WHERE "status" = 'running' AND "progress" <> 'running';
