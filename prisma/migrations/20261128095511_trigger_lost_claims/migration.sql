-- AlterTable
ALTER TABLE "run_triggers" ADD COLUMN     "lost_claims" INTEGER NOT NULL DEFAULT 0;
