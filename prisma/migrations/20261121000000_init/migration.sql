-- CreateEnum
CREATE TYPE "Plan" AS ENUM ('free', 'team', 'enterprise', 'unlimited');

-- CreateEnum
CREATE TYPE "NamespaceKind" AS ENUM ('user', 'organization');

-- CreateEnum
CREATE TYPE "Role" AS ENUM ('read', 'write', 'admin');

-- CreateEnum
CREATE TYPE "Visibility" AS ENUM ('public', 'private', 'internal');

-- CreateEnum
CREATE TYPE "JobStatus" AS ENUM ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'timed_out');

-- CreateEnum
CREATE TYPE "JournalKind" AS ENUM ('log', 'status');

-- CreateTable
CREATE TABLE "users" (
    "id" TEXT NOT NULL,
    "username" TEXT NOT NULL,
    "email" TEXT NOT NULL,
    "plan" "Plan" NOT NULL DEFAULT 'free',
    "operator" BOOLEAN NOT NULL DEFAULT false,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "users_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "namespaces" (
    "id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "kind" "NamespaceKind" NOT NULL,
    "plan" "Plan" NOT NULL DEFAULT 'free',
    "user_id" TEXT,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "namespaces_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "members" (
    "namespace_id" TEXT NOT NULL,
    "user_id" TEXT NOT NULL,
    "role" "Role" NOT NULL,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "members_pkey" PRIMARY KEY ("namespace_id","user_id")
);

-- CreateTable
CREATE TABLE "access_tokens" (
    "id" TEXT NOT NULL,
    "user_id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "hash" BYTEA NOT NULL,
    "scopes" TEXT[],
    "namespaces" TEXT[],
    "repositories" TEXT[],
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "expires_at" TIMESTAMPTZ(3),
    "last_used_at" TIMESTAMPTZ(3),

    CONSTRAINT "access_tokens_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "api_keys" (
    "id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "user_id" TEXT NOT NULL,
    "namespace_id" TEXT,
    "hash" BYTEA NOT NULL,
    "scopes" TEXT[],
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "expires_at" TIMESTAMPTZ(3),
    "last_used_at" TIMESTAMPTZ(3),

    CONSTRAINT "api_keys_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "repositories" (
    "id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "name_key" TEXT NOT NULL,
    "description" TEXT NOT NULL DEFAULT '',
    "visibility" "Visibility" NOT NULL DEFAULT 'private',
    "default_branch" TEXT NOT NULL,
    "size_bytes" BIGINT NOT NULL DEFAULT 0,
    "language" TEXT,
    "content_addressed" BOOLEAN NOT NULL DEFAULT true,
    "branch_protection" BOOLEAN NOT NULL DEFAULT false,
    "secret_scanning" BOOLEAN NOT NULL DEFAULT false,
    "branch_count" INTEGER NOT NULL DEFAULT 0,
    "tag_count" INTEGER NOT NULL DEFAULT 0,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updated_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "pushed_at" TIMESTAMPTZ(3),

    CONSTRAINT "repositories_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "jobs" (
    "id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "created_by_id" TEXT,
    "status" "JobStatus" NOT NULL DEFAULT 'queued',
    "command" TEXT NOT NULL,
    "repo" TEXT,
    "repository_id" TEXT,
    "branch" TEXT,
    "commit_sha" TEXT,
    "image" TEXT,
    "gpu" TEXT NOT NULL,
    "gpu_count" INTEGER NOT NULL,
    "cpu" INTEGER NOT NULL,
    "memory_gb" INTEGER NOT NULL,
    "disk_gb" INTEGER NOT NULL,
    "env" JSONB NOT NULL DEFAULT '{}',
    "secrets" BYTEA,
    "region" TEXT NOT NULL,
    "timeout_minutes" INTEGER NOT NULL,
    "retries" INTEGER NOT NULL,
    "retry_count" INTEGER NOT NULL DEFAULT 0,
    "loss_count" INTEGER NOT NULL DEFAULT 0,
    "output_path" TEXT,
    "exit_code" INTEGER,
    "cost_per_hour" DECIMAL(14,4) NOT NULL,
    "runtime_seconds" INTEGER NOT NULL DEFAULT 0,
    "progress" TEXT NOT NULL DEFAULT '',
    "next_seq" BIGINT NOT NULL DEFAULT 1,
    "available_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "artifact_bytes" BIGINT,
    "artifact_files" INTEGER,
    "usage" JSONB,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "started_at" TIMESTAMPTZ(3),
    "completed_at" TIMESTAMPTZ(3),

    CONSTRAINT "jobs_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "job_attempts" (
    "id" TEXT NOT NULL,
    "job_id" TEXT NOT NULL,
    "number" INTEGER NOT NULL,
    "runner" TEXT NOT NULL,
    "worker_id" TEXT NOT NULL,
    "heartbeat_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "handle" JSONB,
    "log_cursor" JSONB,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "started_at" TIMESTAMPTZ(3),
    "ended_at" TIMESTAMPTZ(3),
    "outcome" TEXT,
    "exit_code" INTEGER,

    CONSTRAINT "job_attempts_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "journal" (
    "job_id" TEXT NOT NULL,
    "seq" BIGINT NOT NULL,
    "kind" "JournalKind" NOT NULL DEFAULT 'log',
    "timestamp" TIMESTAMPTZ(3) NOT NULL,
    "message" TEXT NOT NULL,

    CONSTRAINT "journal_pkey" PRIMARY KEY ("job_id","seq")
);

-- CreateTable
CREATE TABLE "events" (
    "seq" BIGSERIAL NOT NULL,
    "id" TEXT NOT NULL,
    "type" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "subject" TEXT NOT NULL,
    "data" JSONB NOT NULL,
    "timestamp" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "xid" xid8 NOT NULL DEFAULT pg_current_xact_id(),

    CONSTRAINT "events_pkey" PRIMARY KEY ("seq")
);

-- CreateTable
CREATE TABLE "idempotent_requests" (
    "owner" TEXT NOT NULL,
    "key" TEXT NOT NULL,
    "fingerprint" BYTEA NOT NULL,
    "status" INTEGER,
    "headers" JSONB,
    "body" TEXT,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "idempotent_requests_pkey" PRIMARY KEY ("owner","key")
);

-- CreateIndex
CREATE UNIQUE INDEX "users_username_key" ON "users"("username");

-- CreateIndex
CREATE UNIQUE INDEX "users_email_key" ON "users"("email");

-- CreateIndex
CREATE UNIQUE INDEX "namespaces_name_key" ON "namespaces"("name");

-- CreateIndex
CREATE UNIQUE INDEX "namespaces_user_id_key" ON "namespaces"("user_id");

-- CreateIndex
CREATE INDEX "members_user_id_idx" ON "members"("user_id");

-- CreateIndex
CREATE UNIQUE INDEX "access_tokens_hash_key" ON "access_tokens"("hash");

-- CreateIndex
CREATE UNIQUE INDEX "access_tokens_user_id_name_key" ON "access_tokens"("user_id", "name");

-- CreateIndex
CREATE UNIQUE INDEX "api_keys_name_key" ON "api_keys"("name");

-- CreateIndex
CREATE INDEX "api_keys_user_id_idx" ON "api_keys"("user_id");

-- CreateIndex
CREATE INDEX "api_keys_namespace_id_idx" ON "api_keys"("namespace_id");

-- CreateIndex
CREATE INDEX "repositories_namespace_id_updated_at_id_idx" ON "repositories"("namespace_id", "updated_at" DESC, "id" DESC);

-- CreateIndex
CREATE INDEX "repositories_namespace_id_created_at_id_idx" ON "repositories"("namespace_id", "created_at" DESC, "id" DESC);

-- CreateIndex
CREATE INDEX "repositories_namespace_id_size_bytes_id_idx" ON "repositories"("namespace_id", "size_bytes", "id");

-- CreateIndex
CREATE UNIQUE INDEX "repositories_namespace_id_name_key_key" ON "repositories"("namespace_id", "name_key");

-- CreateIndex
CREATE INDEX "jobs_namespace_id_created_at_id_idx" ON "jobs"("namespace_id", "created_at" DESC, "id" DESC);

-- CreateIndex
CREATE INDEX "jobs_namespace_id_status_created_at_id_idx" ON "jobs"("namespace_id", "status", "created_at" DESC, "id" DESC);

-- CreateIndex
CREATE INDEX "jobs_repository_id_idx" ON "jobs"("repository_id");

-- CreateIndex
CREATE UNIQUE INDEX "jobs_namespace_id_name_key" ON "jobs"("namespace_id", "name");

-- CreateIndex
CREATE UNIQUE INDEX "job_attempts_job_id_number_key" ON "job_attempts"("job_id", "number");

-- CreateIndex
CREATE UNIQUE INDEX "events_id_key" ON "events"("id");

-- CreateIndex
CREATE INDEX "events_xid_seq_idx" ON "events"("xid", "seq");

-- CreateIndex
CREATE INDEX "events_namespace_id_seq_idx" ON "events"("namespace_id", "seq");

-- CreateIndex
CREATE INDEX "events_subject_seq_idx" ON "events"("subject", "seq");

-- CreateIndex
CREATE INDEX "idempotent_requests_created_at_idx" ON "idempotent_requests"("created_at");

-- AddForeignKey
ALTER TABLE "namespaces" ADD CONSTRAINT "namespaces_user_id_fkey" FOREIGN KEY ("user_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "members" ADD CONSTRAINT "members_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "members" ADD CONSTRAINT "members_user_id_fkey" FOREIGN KEY ("user_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "access_tokens" ADD CONSTRAINT "access_tokens_user_id_fkey" FOREIGN KEY ("user_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "api_keys" ADD CONSTRAINT "api_keys_user_id_fkey" FOREIGN KEY ("user_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "api_keys" ADD CONSTRAINT "api_keys_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "repositories" ADD CONSTRAINT "repositories_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE RESTRICT ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "jobs" ADD CONSTRAINT "jobs_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE RESTRICT ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "jobs" ADD CONSTRAINT "jobs_created_by_id_fkey" FOREIGN KEY ("created_by_id") REFERENCES "users"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "jobs" ADD CONSTRAINT "jobs_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "job_attempts" ADD CONSTRAINT "job_attempts_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "journal" ADD CONSTRAINT "journal_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE CASCADE ON UPDATE CASCADE;
