-- CreateEnum
CREATE TYPE "RunTriggerKind" AS ENUM ('push', 'tag', 'schedule', 'manual');

-- CreateEnum
CREATE TYPE "RunStatus" AS ENUM ('waiting_for_approval', 'queued', 'running', 'succeeded', 'failed', 'cancelled', 'invalid');

-- AlterTable
ALTER TABLE "branch_rules" ADD COLUMN     "required_jobs" TEXT[] DEFAULT ARRAY[]::TEXT[];

-- AlterTable
ALTER TABLE "commit_statuses" ADD COLUMN     "run_id" TEXT;

-- CreateTable
CREATE TABLE "run_triggers" (
    "id" TEXT NOT NULL,
    "repository_id" TEXT NOT NULL,
    "ref" TEXT NOT NULL,
    "before" TEXT NOT NULL,
    "after" TEXT NOT NULL,
    "starts_run" BOOLEAN NOT NULL,
    "may_create_jobs" BOOLEAN NOT NULL,
    "actor" JSONB NOT NULL,
    "schedule_id" TEXT,
    "attempts" INTEGER NOT NULL DEFAULT 0,
    "due_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "run_triggers_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "runs" (
    "id" TEXT NOT NULL,
    "repository_id" TEXT NOT NULL,
    "number" INTEGER NOT NULL,
    "trigger" "RunTriggerKind" NOT NULL,
    "status" "RunStatus" NOT NULL,
    "ref" TEXT NOT NULL,
    "sha" TEXT NOT NULL,
    "title" TEXT NOT NULL,
    "job_names" TEXT[],
    "plan" JSONB NOT NULL DEFAULT '[]',
    "problems" JSONB NOT NULL DEFAULT '[]',
    "file" TEXT,
    "created_by_id" TEXT,
    "actor" TEXT NOT NULL,
    "approved_by" TEXT,
    "rerun_of_id" TEXT,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "started_at" TIMESTAMPTZ(3),
    "completed_at" TIMESTAMPTZ(3),

    CONSTRAINT "runs_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "schedules" (
    "id" TEXT NOT NULL,
    "repository_id" TEXT NOT NULL,
    "name" TEXT,
    "cron" TEXT NOT NULL,
    "timezone" TEXT NOT NULL,
    "job_names" TEXT[],
    "file" TEXT,
    "next_at" TIMESTAMPTZ(3) NOT NULL,
    "last_at" TIMESTAMPTZ(3),
    "created_by_id" TEXT,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "schedules_pkey" PRIMARY KEY ("id")
);

-- CreateIndex
CREATE INDEX "run_triggers_due_at_idx" ON "run_triggers"("due_at");

-- CreateIndex
CREATE INDEX "run_triggers_repository_id_idx" ON "run_triggers"("repository_id");

-- CreateIndex
CREATE INDEX "runs_repository_id_ref_number_idx" ON "runs"("repository_id", "ref", "number");

-- CreateIndex
CREATE INDEX "runs_repository_id_sha_idx" ON "runs"("repository_id", "sha");

-- CreateIndex
CREATE INDEX "runs_created_by_id_idx" ON "runs"("created_by_id");

-- CreateIndex
CREATE UNIQUE INDEX "runs_repository_id_number_key" ON "runs"("repository_id", "number");

-- CreateIndex
CREATE INDEX "schedules_next_at_idx" ON "schedules"("next_at");

-- CreateIndex
CREATE INDEX "schedules_created_by_id_idx" ON "schedules"("created_by_id");

-- CreateIndex
CREATE UNIQUE INDEX "schedules_repository_id_name_key" ON "schedules"("repository_id", "name");

-- AddForeignKey
ALTER TABLE "run_triggers" ADD CONSTRAINT "run_triggers_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "runs" ADD CONSTRAINT "runs_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "runs" ADD CONSTRAINT "runs_created_by_id_fkey" FOREIGN KEY ("created_by_id") REFERENCES "users"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "schedules" ADD CONSTRAINT "schedules_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "schedules" ADD CONSTRAINT "schedules_created_by_id_fkey" FOREIGN KEY ("created_by_id") REFERENCES "users"("id") ON DELETE SET NULL ON UPDATE CASCADE;
