-- AlterTable
ALTER TABLE "idempotent_requests" ADD COLUMN "effects" JSONB NOT NULL DEFAULT '{}';
