-- AlterTable
ALTER TABLE "idempotent_requests" ADD COLUMN     "claim" TEXT NOT NULL DEFAULT '';

-- CreateIndex
CREATE INDEX "audit_entries_main" ON "audit_entries"("action", "id" DESC) WHERE (main);
