-- All tables, indexes and foreign keys. Everything but the last section is what Prisma writes for `schema.prisma`
-- (`npm run migrate:new`). Functions and triggers are in `prisma/functions.sql`.

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
CREATE TYPE "CommitState" AS ENUM ('pending', 'success', 'failure', 'error');

-- CreateEnum
CREATE TYPE "StoredKind" AS ENUM ('secret', 'variable');

-- CreateEnum
CREATE TYPE "NeedCondition" AS ENUM ('succeeded', 'failed', 'finished');

-- CreateEnum
CREATE TYPE "GroupConflict" AS ENUM ('queue', 'cancel_running', 'skip');

-- CreateEnum
CREATE TYPE "SlotState" AS ENUM ('pending', 'waiting', 'holding');

-- CreateEnum
CREATE TYPE "RunTriggerKind" AS ENUM ('push', 'tag', 'schedule', 'manual');

-- CreateEnum
CREATE TYPE "RunStatus" AS ENUM ('waiting_for_approval', 'queued', 'running', 'succeeded', 'failed', 'cancelled', 'invalid');

-- CreateEnum
CREATE TYPE "DeliveryStatus" AS ENUM ('pending', 'succeeded', 'failed');

-- CreateTable
CREATE TABLE "users" (
    "id" TEXT NOT NULL,
    "username" TEXT NOT NULL,
    "email" TEXT NOT NULL,
    "plan" "Plan" NOT NULL DEFAULT 'free',
    "operator" BOOLEAN NOT NULL DEFAULT false,
    "disabled_at" TIMESTAMPTZ(3),
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
    "storage_bytes" BIGINT NOT NULL DEFAULT 0,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "deleted_at" TIMESTAMPTZ(3),

    CONSTRAINT "namespaces_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "storage_reservations" (
    "id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "bytes" BIGINT NOT NULL,
    "expires_at" TIMESTAMPTZ(3) NOT NULL,

    CONSTRAINT "storage_reservations_pkey" PRIMARY KEY ("id")
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
CREATE TABLE "browser_sessions" (
    "id" TEXT NOT NULL,
    "user_id" TEXT NOT NULL,
    "hash" BYTEA NOT NULL,
    "method" TEXT NOT NULL,
    "access_token_id" TEXT,
    "user_agent" TEXT NOT NULL,
    "address" TEXT,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "expires_at" TIMESTAMPTZ(3) NOT NULL,
    "last_used_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "browser_sessions_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "identities" (
    "id" TEXT NOT NULL,
    "issuer" TEXT NOT NULL,
    "subject" TEXT NOT NULL,
    "user_id" TEXT NOT NULL,
    "operator" BOOLEAN NOT NULL DEFAULT false,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "last_used_at" TIMESTAMPTZ(3),

    CONSTRAINT "identities_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "device_requests" (
    "id" TEXT NOT NULL,
    "device_hash" BYTEA NOT NULL,
    "user_hash" BYTEA NOT NULL,
    "client" TEXT NOT NULL,
    "device_name" TEXT,
    "scopes" TEXT[],
    "days" INTEGER NOT NULL,
    "address" TEXT,
    "status" TEXT NOT NULL DEFAULT 'pending',
    "user_id" TEXT,
    "token_name" TEXT,
    "interval" INTEGER NOT NULL,
    "polled_at" TIMESTAMPTZ(3),
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "expires_at" TIMESTAMPTZ(3) NOT NULL,

    CONSTRAINT "device_requests_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "device_guesses" (
    "user_id" TEXT NOT NULL,
    "wrong" INTEGER NOT NULL,
    "since" TIMESTAMPTZ(3) NOT NULL,

    CONSTRAINT "device_guesses_pkey" PRIMARY KEY ("user_id")
);

-- CreateTable
CREATE TABLE "sign_in_links" (
    "id" TEXT NOT NULL,
    "user_id" TEXT NOT NULL,
    "hash" BYTEA NOT NULL,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "expires_at" TIMESTAMPTZ(3) NOT NULL,

    CONSTRAINT "sign_in_links_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "ssh_keys" (
    "id" TEXT NOT NULL,
    "user_id" TEXT NOT NULL,
    "repository_id" TEXT,
    "title" TEXT NOT NULL,
    "public_key" TEXT NOT NULL,
    "fingerprint" TEXT NOT NULL,
    "write" BOOLEAN NOT NULL DEFAULT false,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "last_used_at" TIMESTAMPTZ(3),

    CONSTRAINT "ssh_keys_pkey" PRIMARY KEY ("id")
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
    "large_bytes" BIGINT NOT NULL DEFAULT 0,
    "language" TEXT,
    "content_addressed" BOOLEAN NOT NULL DEFAULT true,
    "branch_protection" BOOLEAN NOT NULL DEFAULT false,
    "secret_scanning" BOOLEAN NOT NULL DEFAULT false,
    "branch_count" INTEGER NOT NULL DEFAULT 0,
    "tag_count" INTEGER NOT NULL DEFAULT 0,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updated_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "pushed_at" TIMESTAMPTZ(3),
    "records" INTEGER NOT NULL DEFAULT 0,

    CONSTRAINT "repositories_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "file_locks" (
    "id" TEXT NOT NULL,
    "repository_id" TEXT NOT NULL,
    "path" TEXT NOT NULL,
    "owner_id" TEXT NOT NULL,
    "locked_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "file_locks_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "branch_rules" (
    "repository_id" TEXT NOT NULL,
    "pattern" TEXT NOT NULL,
    "push_role" "Role" NOT NULL DEFAULT 'write',
    "pusher_ids" TEXT[],
    "allows_force_pushes" BOOLEAN NOT NULL DEFAULT false,
    "allows_deletions" BOOLEAN NOT NULL DEFAULT false,
    "required_jobs" TEXT[] DEFAULT ARRAY[]::TEXT[],
    "updated_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "branch_rules_pkey" PRIMARY KEY ("repository_id","pattern")
);

-- CreateTable
CREATE TABLE "commit_statuses" (
    "repository_id" TEXT NOT NULL,
    "sha" TEXT NOT NULL,
    "context" TEXT NOT NULL,
    "state" "CommitState" NOT NULL,
    "description" TEXT,
    "target_url" TEXT,
    "creator" TEXT NOT NULL,
    "run_id" TEXT,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updated_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "commit_statuses_pkey" PRIMARY KEY ("repository_id","sha","context")
);

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
    "lost_claims" INTEGER NOT NULL DEFAULT 0,
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
CREATE TABLE "deleted_run_jobs" (
    "job_id" TEXT NOT NULL,
    "run_id" TEXT NOT NULL,
    "run_job" TEXT NOT NULL,
    "status" "JobStatus" NOT NULL,
    "started_at" TIMESTAMPTZ(3),
    "completed_at" TIMESTAMPTZ(3),

    CONSTRAINT "deleted_run_jobs_pkey" PRIMARY KEY ("job_id")
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

-- CreateTable
CREATE TABLE "allowed_secrets" (
    "repository_id" TEXT NOT NULL,
    "finding" TEXT NOT NULL,
    "kind" TEXT NOT NULL,
    "path" TEXT NOT NULL,
    "allowed_by" TEXT NOT NULL,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "allowed_secrets_pkey" PRIMARY KEY ("repository_id","finding")
);

-- CreateTable
CREATE TABLE "stored_values" (
    "id" TEXT NOT NULL,
    "kind" "StoredKind" NOT NULL,
    "namespace_id" TEXT,
    "repository_id" TEXT,
    "name" TEXT NOT NULL,
    "value" TEXT,
    "sealed" BYTEA,
    "refs" TEXT[] DEFAULT ARRAY[]::TEXT[],
    "updated_by" TEXT NOT NULL,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updated_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "last_used_at" TIMESTAMPTZ(3),

    CONSTRAINT "stored_values_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "jobs" (
    "id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "created_by_id" TEXT,
    "rerun_of_id" TEXT,
    "status" "JobStatus" NOT NULL DEFAULT 'queued',
    "command" TEXT NOT NULL,
    "repo" TEXT,
    "repository_id" TEXT,
    "branch" TEXT,
    "commit_sha" TEXT,
    "snapshot_id" TEXT,
    "tag" TEXT,
    "image" TEXT,
    "gpu" TEXT NOT NULL,
    "gpu_count" INTEGER NOT NULL,
    "cpu" INTEGER NOT NULL,
    "memory_gb" INTEGER NOT NULL,
    "disk_gb" INTEGER NOT NULL,
    "env" JSONB NOT NULL DEFAULT '{}',
    "secrets" BYTEA,
    "secret_names" TEXT[] DEFAULT ARRAY[]::TEXT[],
    "variable_names" TEXT[] DEFAULT ARRAY[]::TEXT[],
    "command_from_ref" BOOLEAN NOT NULL DEFAULT false,
    "identity" JSONB,
    "region" TEXT NOT NULL,
    "timeout_minutes" INTEGER NOT NULL,
    "max_cost" DECIMAL(14,4),
    "idle_timeout_minutes" INTEGER,
    "stop_reason" TEXT,
    "retries" INTEGER NOT NULL,
    "retry_count" INTEGER NOT NULL DEFAULT 0,
    "loss_count" INTEGER NOT NULL DEFAULT 0,
    "output_path" TEXT,
    "inputs" JSONB NOT NULL DEFAULT '[]',
    "exit_code" INTEGER,
    "cost_per_hour" DECIMAL(14,4) NOT NULL,
    "runtime_seconds" INTEGER NOT NULL DEFAULT 0,
    "progress" TEXT NOT NULL DEFAULT '',
    "progress_said" BOOLEAN NOT NULL DEFAULT false,
    "next_seq" BIGINT NOT NULL DEFAULT 1,
    "log_lines" BIGINT NOT NULL DEFAULT 0,
    "log_bytes" BIGINT NOT NULL DEFAULT 0,
    "log_full" BOOLEAN NOT NULL DEFAULT false,
    "log_until" TIMESTAMPTZ(6),
    "attempt_id" TEXT,
    "blocked" BOOLEAN NOT NULL DEFAULT false,
    "watched" BOOLEAN NOT NULL DEFAULT false,
    "array_id" TEXT,
    "array_index" INTEGER,
    "array_size" INTEGER,
    "folded" BOOLEAN NOT NULL DEFAULT false,
    "matrix_values" JSONB,
    "concurrency_group" TEXT,
    "on_conflict" "GroupConflict",
    "run_id" TEXT,
    "run_job" TEXT,
    "available_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "artifact_bytes" BIGINT,
    "artifact_files" INTEGER,
    "artifacts_of" TEXT,
    "usage" JSONB,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "started_at" TIMESTAMPTZ(3),
    "completed_at" TIMESTAMPTZ(3),

    CONSTRAINT "jobs_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "job_needs" (
    "job_id" TEXT NOT NULL,
    "needed_id" TEXT NOT NULL,
    "needed_name" TEXT NOT NULL,
    "run_job" TEXT,
    "array_id" TEXT,
    "condition" "NeedCondition" NOT NULL,
    "ended_as" "JobStatus",

    CONSTRAINT "job_needs_pkey" PRIMARY KEY ("job_id","needed_id")
);

-- CreateTable
CREATE TABLE "job_slots" (
    "job_id" TEXT NOT NULL,
    "group_key" TEXT NOT NULL,
    "unit" TEXT NOT NULL,
    "max_running" INTEGER NOT NULL,
    "on_conflict" "GroupConflict" NOT NULL,
    "state" "SlotState" NOT NULL,

    CONSTRAINT "job_slots_pkey" PRIMARY KEY ("job_id","group_key")
);

-- CreateTable
CREATE TABLE "job_arrays" (
    "id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "size" INTEGER NOT NULL,
    "max_parallel" INTEGER,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "job_arrays_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "job_changes" (
    "id" BIGSERIAL NOT NULL,
    "job_id" TEXT NOT NULL,

    CONSTRAINT "job_changes_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "snapshots" (
    "repository_id" TEXT NOT NULL,
    "id" TEXT NOT NULL,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "snapshots_pkey" PRIMARY KEY ("repository_id","id")
);

-- CreateTable
CREATE TABLE "list_counts" (
    "id" BIGSERIAL NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "list" TEXT NOT NULL,
    "value" TEXT NOT NULL,
    "started" BOOLEAN NOT NULL,
    "completed" BOOLEAN NOT NULL,
    "n" BIGINT NOT NULL,

    CONSTRAINT "list_counts_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "job_labels" (
    "job_id" TEXT NOT NULL,
    "key" TEXT NOT NULL,
    "value" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,

    CONSTRAINT "job_labels_pkey" PRIMARY KEY ("job_id","key")
);

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
    "artifacts_of" TEXT,
    "removing" BOOLEAN NOT NULL DEFAULT false,
    "exempt" BOOLEAN NOT NULL DEFAULT false,
    "deleted_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "kept_artifacts_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "job_attempts" (
    "id" TEXT NOT NULL,
    "job_id" TEXT NOT NULL,
    "number" INTEGER NOT NULL,
    "runner" TEXT NOT NULL,
    "machine" TEXT NOT NULL DEFAULT 'local',
    "cpus" INTEGER,
    "memory_bytes" BIGINT,
    "shared" BOOLEAN NOT NULL DEFAULT false,
    "worker_id" TEXT NOT NULL,
    "heartbeat_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "handle" JSONB,
    "log_cursor" JSONB,
    "given_values" BYTEA,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "started_at" TIMESTAMPTZ(3),
    "exited_at" TIMESTAMPTZ(3),
    "ended_at" TIMESTAMPTZ(3),
    "outcome" TEXT,
    "exit_code" INTEGER,

    CONSTRAINT "job_attempts_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "attempt_usage" (
    "attempt_id" TEXT NOT NULL,
    "samples_per_point" INTEGER NOT NULL DEFAULT 1,
    "times" TIMESTAMPTZ(3)[],
    "gpu_percent" INTEGER[],
    "cpu_percent" INTEGER[],
    "memory_bytes" BIGINT[],
    "disk_bytes" BIGINT[],

    CONSTRAINT "attempt_usage_pkey" PRIMARY KEY ("attempt_id")
);

-- CreateTable
CREATE TABLE "usage_days" (
    "namespace_id" TEXT NOT NULL,
    "day" DATE NOT NULL,
    "user_id" TEXT NOT NULL,
    "seconds" BIGINT NOT NULL,
    "gpu_seconds" BIGINT NOT NULL,
    "price_seconds" DECIMAL(30,4) NOT NULL,
    "jobs" INTEGER NOT NULL,

    CONSTRAINT "usage_days_pkey" PRIMARY KEY ("namespace_id","day","user_id")
);

-- CreateTable
CREATE TABLE "budgets" (
    "namespace_id" TEXT NOT NULL,
    "owner" TEXT NOT NULL,
    "amount" DECIMAL(14,4) NOT NULL,
    "on_reached" TEXT NOT NULL,
    "notify" INTEGER[],
    "updated_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "budgets_pkey" PRIMARY KEY ("namespace_id","owner")
);

-- CreateTable
CREATE TABLE "budget_notices" (
    "namespace_id" TEXT NOT NULL,
    "owner" TEXT NOT NULL,
    "month" DATE NOT NULL,
    "threshold" INTEGER NOT NULL,

    CONSTRAINT "budget_notices_pkey" PRIMARY KEY ("namespace_id","owner","month","threshold")
);

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

-- CreateTable
CREATE TABLE "servers" (
    "id" TEXT NOT NULL,
    "role" TEXT NOT NULL,
    "url" TEXT,
    "repositories" TEXT,
    "storage" TEXT NOT NULL,
    "heartbeat_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "servers_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "workers" (
    "id" TEXT NOT NULL,
    "runner" TEXT NOT NULL,
    "machines" JSONB NOT NULL DEFAULT '[]',
    "heartbeat_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "workers_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "queue_shares" (
    "namespace_id" TEXT NOT NULL,
    "held" INTEGER NOT NULL DEFAULT 0,
    "served_at" TIMESTAMPTZ(6) NOT NULL DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone,

    CONSTRAINT "queue_shares_pkey" PRIMARY KEY ("namespace_id")
);

-- CreateTable
CREATE TABLE "queue_lines" (
    "namespace_id" TEXT NOT NULL,
    "gpu" TEXT NOT NULL,
    "region" TEXT NOT NULL,
    "waiting" INTEGER NOT NULL DEFAULT 0,
    "open" BOOLEAN NOT NULL DEFAULT false,
    "head" TEXT NOT NULL DEFAULT '',
    "held" INTEGER NOT NULL DEFAULT 0,
    "served_at" TIMESTAMPTZ(6) NOT NULL DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone,
    "line_served_at" TIMESTAMPTZ(6) NOT NULL DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone,

    CONSTRAINT "queue_lines_pkey" PRIMARY KEY ("namespace_id","gpu","region")
);

-- CreateTable
CREATE TABLE "journal_pages" (
    "job_id" TEXT NOT NULL,
    "first_seq" BIGINT NOT NULL,
    "last_seq" BIGINT NOT NULL,
    "lines" INTEGER NOT NULL,
    "bytes" INTEGER NOT NULL,
    "until" TIMESTAMPTZ(6),
    "open" BOOLEAN NOT NULL,
    "compressed" BOOLEAN NOT NULL,
    "data" BYTEA NOT NULL,

    CONSTRAINT "journal_pages_pkey" PRIMARY KEY ("job_id","first_seq")
);

-- CreateTable
CREATE TABLE "deleted_journals" (
    "job_id" TEXT NOT NULL,

    CONSTRAINT "deleted_journals_pkey" PRIMARY KEY ("job_id")
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
    "xid" xid8 NOT NULL,

    CONSTRAINT "events_pkey" PRIMARY KEY ("seq")
);

-- CreateTable
CREATE TABLE "event_clock" (
    "only" BOOLEAN NOT NULL DEFAULT true,
    "ahead" BIGINT NOT NULL DEFAULT 0,
    "removed_xid" xid8 NOT NULL DEFAULT '0'::xid8,
    "removed_seq" BIGINT NOT NULL DEFAULT 0,

    CONSTRAINT "event_clock_pkey" PRIMARY KEY ("only")
);

-- CreateTable
CREATE TABLE "event_readers" (
    "name" TEXT NOT NULL,
    "place" TEXT NOT NULL,

    CONSTRAINT "event_readers_pkey" PRIMARY KEY ("name")
);

-- CreateTable
CREATE TABLE "webhooks" (
    "id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "url" TEXT NOT NULL,
    "secret" BYTEA,
    "former_secret" BYTEA,
    "former_until" TIMESTAMPTZ(3),
    "event_types" TEXT[],
    "active" BOOLEAN NOT NULL DEFAULT true,
    "off_reason" TEXT,
    "failing_since" TIMESTAMPTZ(3),
    "created_by_id" TEXT,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updated_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "deleted_at" TIMESTAMPTZ(3),

    CONSTRAINT "webhooks_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "webhook_namespaces" (
    "webhook_id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,

    CONSTRAINT "webhook_namespaces_pkey" PRIMARY KEY ("webhook_id","namespace_id")
);

-- CreateTable
CREATE TABLE "webhook_queues" (
    "webhook_id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "due_at" TIMESTAMPTZ(6),
    "server_id" TEXT,

    CONSTRAINT "webhook_queues_pkey" PRIMARY KEY ("webhook_id")
);

-- CreateTable
CREATE TABLE "webhook_messages" (
    "id" TEXT NOT NULL,
    "type" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "namespace" TEXT NOT NULL,
    "timestamp" TIMESTAMPTZ(3) NOT NULL,
    "data" JSONB NOT NULL,

    CONSTRAINT "webhook_messages_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "deliveries" (
    "id" TEXT NOT NULL,
    "webhook_id" TEXT NOT NULL,
    "message_id" TEXT NOT NULL,
    "type" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "status" "DeliveryStatus" NOT NULL DEFAULT 'pending',
    "outcome" TEXT,
    "response_status" INTEGER,
    "attempts" INTEGER NOT NULL DEFAULT 0,
    "tries" JSONB NOT NULL DEFAULT '[]',
    "next_attempt_at" TIMESTAMPTZ(3),
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updated_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "completed_at" TIMESTAMPTZ(3),

    CONSTRAINT "deliveries_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "audit_entries" (
    "id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "main" BOOLEAN NOT NULL,
    "action" TEXT NOT NULL,
    "subject" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "details" JSONB NOT NULL,
    "actor_id" TEXT,
    "actor" TEXT NOT NULL,
    "credential_kind" TEXT,
    "credential_id" TEXT,
    "credential_name" TEXT,
    "address" TEXT,
    "request_id" TEXT,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "audit_entries_pkey" PRIMARY KEY ("id","namespace_id")
);

-- CreateTable
CREATE TABLE "large_files" (
    "id" TEXT NOT NULL,
    "repository_id" TEXT NOT NULL,
    "oid" TEXT NOT NULL,
    "size" BIGINT NOT NULL,
    "store_id" INTEGER NOT NULL,
    "given_by_id" TEXT,
    "given_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "large_files_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "deleted_large_files" (
    "repository_id" TEXT NOT NULL,

    CONSTRAINT "deleted_large_files_pkey" PRIMARY KEY ("repository_id")
);

-- CreateTable
CREATE TABLE "large_stores" (
    "id" SERIAL NOT NULL,
    "repository_id" TEXT,

    CONSTRAINT "large_stores_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "large_objects" (
    "store_id" INTEGER NOT NULL,
    "oid" TEXT NOT NULL,
    "size" BIGINT NOT NULL,
    "holders" INTEGER NOT NULL,
    "touched_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "damaged" BOOLEAN NOT NULL DEFAULT false,

    CONSTRAINT "large_objects_pkey" PRIMARY KEY ("store_id","oid")
);

-- CreateTable
CREATE TABLE "large_recipes" (
    "store_id" INTEGER NOT NULL,
    "oid" TEXT NOT NULL,
    "start" BIGINT NOT NULL,
    "chunks" BYTEA NOT NULL,

    CONSTRAINT "large_recipes_pkey" PRIMARY KEY ("store_id","oid","start")
);

-- CreateTable
CREATE TABLE "large_uploads" (
    "repository_id" TEXT NOT NULL,
    "oid" TEXT NOT NULL,
    "size" BIGINT NOT NULL,
    "store_id" INTEGER NOT NULL,
    "bytes" BIGINT NOT NULL,
    "touched_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "large_uploads_pkey" PRIMARY KEY ("repository_id","oid")
);

-- CreateTable
CREATE TABLE "large_upload_pages" (
    "repository_id" TEXT NOT NULL,
    "oid" TEXT NOT NULL,
    "start" BIGINT NOT NULL,
    "chunks" BYTEA NOT NULL,

    CONSTRAINT "large_upload_pages_pkey" PRIMARY KEY ("repository_id","oid","start")
);

-- CreateTable
CREATE TABLE "large_chunks" (
    "store_id" INTEGER NOT NULL,
    "hash" BYTEA NOT NULL,
    "pack_id" INTEGER NOT NULL,
    "start" INTEGER NOT NULL,
    "length" INTEGER NOT NULL,
    "uses" INTEGER NOT NULL DEFAULT 0,
    "unused_since" TIMESTAMPTZ(6) DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "large_chunks_pkey" PRIMARY KEY ("store_id","hash")
);

-- CreateTable
CREATE TABLE "large_packs" (
    "id" SERIAL NOT NULL,
    "store_id" INTEGER NOT NULL,
    "key" TEXT NOT NULL,
    "bytes" INTEGER NOT NULL DEFAULT 0,
    "live_bytes" INTEGER NOT NULL DEFAULT 0,
    "tier" INTEGER,
    "state" TEXT NOT NULL DEFAULT 'putting',
    "since" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "changed" BOOLEAN NOT NULL DEFAULT false,

    CONSTRAINT "large_packs_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "settings" (
    "name" TEXT NOT NULL,
    "value" BYTEA NOT NULL,

    CONSTRAINT "settings_pkey" PRIMARY KEY ("name")
);

-- CreateTable
CREATE TABLE "signing_keys" (
    "id" TEXT NOT NULL,
    "public_key" JSONB NOT NULL,
    "private_key" BYTEA NOT NULL,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "signing_keys_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "idempotent_requests" (
    "owner" TEXT NOT NULL,
    "key" TEXT NOT NULL,
    "claim" TEXT NOT NULL DEFAULT '',
    "fingerprint" BYTEA NOT NULL,
    "status" INTEGER,
    "headers" JSONB,
    "body" BYTEA,
    "effects" JSONB NOT NULL DEFAULT '{}',
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
CREATE INDEX "namespaces_deleted" ON "namespaces"("deleted_at") WHERE (deleted_at IS NOT NULL);

-- CreateIndex
CREATE INDEX "storage_reservations_namespace_id_idx" ON "storage_reservations"("namespace_id");

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
CREATE UNIQUE INDEX "browser_sessions_hash_key" ON "browser_sessions"("hash");

-- CreateIndex
CREATE INDEX "browser_sessions_user_id_id_idx" ON "browser_sessions"("user_id", "id" DESC);

-- CreateIndex
CREATE INDEX "browser_sessions_access_token_id_idx" ON "browser_sessions"("access_token_id");

-- CreateIndex
CREATE INDEX "browser_sessions_expires_at_idx" ON "browser_sessions"("expires_at");

-- CreateIndex
CREATE INDEX "identities_user_id_idx" ON "identities"("user_id");

-- CreateIndex
CREATE UNIQUE INDEX "identities_issuer_subject_key" ON "identities"("issuer", "subject");

-- CreateIndex
CREATE UNIQUE INDEX "device_requests_device_hash_key" ON "device_requests"("device_hash");

-- CreateIndex
CREATE UNIQUE INDEX "device_requests_user_hash_key" ON "device_requests"("user_hash");

-- CreateIndex
CREATE INDEX "device_requests_address_expires_at_idx" ON "device_requests"("address", "expires_at");

-- CreateIndex
CREATE INDEX "device_requests_user_id_idx" ON "device_requests"("user_id");

-- CreateIndex
CREATE INDEX "device_requests_expires_at_idx" ON "device_requests"("expires_at");

-- CreateIndex
CREATE INDEX "device_guesses_since_idx" ON "device_guesses"("since");

-- CreateIndex
CREATE UNIQUE INDEX "sign_in_links_hash_key" ON "sign_in_links"("hash");

-- CreateIndex
CREATE INDEX "sign_in_links_user_id_idx" ON "sign_in_links"("user_id");

-- CreateIndex
CREATE INDEX "sign_in_links_expires_at_idx" ON "sign_in_links"("expires_at");

-- CreateIndex
CREATE UNIQUE INDEX "ssh_keys_fingerprint_key" ON "ssh_keys"("fingerprint");

-- CreateIndex
CREATE INDEX "ssh_keys_user_id_id_idx" ON "ssh_keys"("user_id", "id" DESC);

-- CreateIndex
CREATE INDEX "ssh_keys_repository_id_id_idx" ON "ssh_keys"("repository_id", "id" DESC);

-- CreateIndex
CREATE INDEX "repositories_namespace_id_updated_at_id_visibility_idx" ON "repositories"("namespace_id", "updated_at" DESC, "id" DESC, "visibility");

-- CreateIndex
CREATE INDEX "repositories_namespace_id_created_at_id_visibility_idx" ON "repositories"("namespace_id", "created_at" DESC, "id" DESC, "visibility");

-- CreateIndex
CREATE INDEX "repositories_namespace_id_size_bytes_id_visibility_idx" ON "repositories"("namespace_id", "size_bytes", "id", "visibility");

-- CreateIndex
CREATE INDEX "repositories_namespace_id_visibility_name_key_idx" ON "repositories"("namespace_id", "visibility", "name_key");

-- CreateIndex
CREATE INDEX "repositories_open" ON "repositories"("name_key" text_pattern_ops) WHERE (visibility <> 'private');

-- CreateIndex
CREATE UNIQUE INDEX "repositories_namespace_id_name_key_key" ON "repositories"("namespace_id", "name_key");

-- CreateIndex
CREATE INDEX "file_locks_repository_id_id_idx" ON "file_locks"("repository_id", "id");

-- CreateIndex
CREATE INDEX "file_locks_owner_id_idx" ON "file_locks"("owner_id");

-- CreateIndex
CREATE UNIQUE INDEX "file_locks_repository_id_path_key" ON "file_locks"("repository_id", "path");

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
CREATE INDEX "deleted_run_jobs_run_id_idx" ON "deleted_run_jobs"("run_id");

-- CreateIndex
CREATE INDEX "schedules_next_at_idx" ON "schedules"("next_at");

-- CreateIndex
CREATE INDEX "schedules_created_by_id_idx" ON "schedules"("created_by_id");

-- CreateIndex
CREATE UNIQUE INDEX "schedules_repository_id_name_key" ON "schedules"("repository_id", "name");

-- CreateIndex
CREATE UNIQUE INDEX "stored_values_namespace_id_kind_name_key" ON "stored_values"("namespace_id", "kind", "name");

-- CreateIndex
CREATE UNIQUE INDEX "stored_values_repository_id_kind_name_key" ON "stored_values"("repository_id", "kind", "name");

-- CreateIndex
CREATE INDEX "jobs_namespace_id_created_at_id_idx" ON "jobs"("namespace_id", "created_at" DESC, "id" DESC);

-- CreateIndex
CREATE INDEX "jobs_namespace_id_status_created_at_id_idx" ON "jobs"("namespace_id", "status", "created_at" DESC, "id" DESC);

-- CreateIndex
CREATE INDEX "jobs_namespace_id_started_at_id_status_idx" ON "jobs"("namespace_id", "started_at" DESC NULLS LAST, "id" DESC, "status");

-- CreateIndex
CREATE INDEX "jobs_namespace_id_completed_at_id_status_idx" ON "jobs"("namespace_id", "completed_at" DESC NULLS LAST, "id" DESC, "status");

-- CreateIndex
CREATE INDEX "jobs_namespace_id_status_name_idx" ON "jobs"("namespace_id", "status", "name");

-- CreateIndex
CREATE INDEX "jobs_namespace_id_created_by_id_created_at_id_idx" ON "jobs"("namespace_id", "created_by_id", "created_at" DESC, "id" DESC);

-- CreateIndex
CREATE INDEX "jobs_repository_id_created_at_id_idx" ON "jobs"("repository_id", "created_at" DESC, "id" DESC);

-- CreateIndex
CREATE INDEX "jobs_with_gpu" ON "jobs"("namespace_id", "gpu", "created_at" DESC, "id" DESC) WHERE (gpu <> 'none');

-- CreateIndex
CREATE INDEX "jobs_waiting" ON "jobs"("gpu", "region", "namespace_id", "id") WHERE (status = 'queued' AND NOT blocked);

-- CreateIndex
CREATE INDEX "jobs_postponed" ON "jobs"("available_at") WHERE (status = 'queued' AND available_at > created_at);

-- CreateIndex
CREATE INDEX "jobs_snapshot_id_idx" ON "jobs"("snapshot_id") WHERE (snapshot_id IS NOT NULL);

-- CreateIndex
CREATE INDEX "jobs_array_id_status_id_idx" ON "jobs"("array_id", "status", "id") WHERE (array_id IS NOT NULL);

-- CreateIndex
CREATE INDEX "jobs_run_id_id_idx" ON "jobs"("run_id", "id") WHERE (run_id IS NOT NULL);

-- CreateIndex
CREATE UNIQUE INDEX "jobs_namespace_id_name_key" ON "jobs"("namespace_id", "name");

-- CreateIndex
CREATE INDEX "job_needs_needed_id_idx" ON "job_needs"("needed_id");

-- CreateIndex
CREATE INDEX "job_slots_group_key_state_job_id_idx" ON "job_slots"("group_key", "state", "job_id");

-- CreateIndex
CREATE INDEX "job_arrays_namespace_id_name_id_idx" ON "job_arrays"("namespace_id", "name", "id");

-- CreateIndex
CREATE INDEX "snapshots_created_at_idx" ON "snapshots"("created_at");

-- CreateIndex
CREATE INDEX "list_counts_namespace_id_list_idx" ON "list_counts"("namespace_id", "list");

-- CreateIndex
CREATE INDEX "job_labels_namespace_id_key_value_job_id_idx" ON "job_labels"("namespace_id", "key", "value", "job_id" DESC);

-- CreateIndex
CREATE INDEX "kept_artifacts_namespace_id_deleted_at_id_idx" ON "kept_artifacts"("namespace_id", "deleted_at" DESC, "id" DESC);

-- CreateIndex
CREATE INDEX "kept_artifacts_repository_id_idx" ON "kept_artifacts"("repository_id");

-- CreateIndex
CREATE INDEX "kept_artifacts_removing" ON "kept_artifacts"("id") WHERE (removing);

-- CreateIndex
CREATE INDEX "job_attempts_open" ON "job_attempts"("worker_id") WHERE (ended_at IS NULL);

-- CreateIndex
CREATE UNIQUE INDEX "job_attempts_job_id_number_key" ON "job_attempts"("job_id", "number");

-- CreateIndex
CREATE INDEX "queue_order" ON "queue_lines"("gpu", "held", "served_at", "namespace_id", "line_served_at", "region") WHERE (open);

-- CreateIndex
CREATE INDEX "journal_pages_open" ON "journal_pages"("job_id", "first_seq") WHERE (open);

-- CreateIndex
CREATE UNIQUE INDEX "events_id_key" ON "events"("id");

-- CreateIndex
CREATE INDEX "events_xid_seq_idx" ON "events"("xid", "seq");

-- CreateIndex
CREATE INDEX "events_namespace_id_xid_seq_idx" ON "events"("namespace_id", "xid", "seq");

-- CreateIndex
CREATE INDEX "events_subject_xid_seq_idx" ON "events"("subject", "xid", "seq");

-- CreateIndex
CREATE INDEX "webhooks_deleted" ON "webhooks"("deleted_at") WHERE (deleted_at IS NOT NULL);

-- CreateIndex
CREATE INDEX "webhook_namespaces_namespace_id_webhook_id_idx" ON "webhook_namespaces"("namespace_id", "webhook_id");

-- CreateIndex
CREATE INDEX "webhook_queues_due" ON "webhook_queues"("due_at") WHERE (due_at IS NOT NULL);

-- CreateIndex
CREATE INDEX "deliveries_webhook_id_id_idx" ON "deliveries"("webhook_id", "id" DESC);

-- CreateIndex
CREATE INDEX "deliveries_due" ON "deliveries"("webhook_id", "next_attempt_at", "id") WHERE (status = 'pending');

-- CreateIndex
CREATE INDEX "deliveries_failed" ON "deliveries"("webhook_id", "id" DESC) WHERE (status = 'failed');

-- CreateIndex
CREATE INDEX "deliveries_webhook_id_updated_at_id_idx" ON "deliveries"("webhook_id", "updated_at", "id");

-- CreateIndex
CREATE INDEX "deliveries_message_id_idx" ON "deliveries"("message_id");

-- CreateIndex
CREATE INDEX "audit_entries_namespace_id_id_idx" ON "audit_entries"("namespace_id", "id" DESC);

-- CreateIndex
CREATE INDEX "audit_entries_namespace_id_action_id_idx" ON "audit_entries"("namespace_id", "action", "id" DESC);

-- CreateIndex
CREATE INDEX "audit_entries_actor_id_id_idx" ON "audit_entries"("actor_id", "id" DESC);

-- CreateIndex
CREATE INDEX "audit_entries_main" ON "audit_entries"("action", "id" DESC) WHERE (main);

-- CreateIndex
CREATE INDEX "large_files_repository_id_id_idx" ON "large_files"("repository_id", "id" DESC);

-- CreateIndex
CREATE UNIQUE INDEX "large_files_repository_id_oid_key" ON "large_files"("repository_id", "oid");

-- CreateIndex
CREATE UNIQUE INDEX "large_stores_repository_id_key" ON "large_stores"("repository_id");

-- CreateIndex
CREATE INDEX "large_stores_left" ON "large_stores"("id") WHERE (repository_id IS NULL);

-- CreateIndex
CREATE INDEX "large_objects_unused" ON "large_objects"("touched_at") WHERE (holders = 0);

-- CreateIndex
CREATE INDEX "large_uploads_touched_at_idx" ON "large_uploads"("touched_at");

-- CreateIndex
CREATE INDEX "large_chunks_pack_id_idx" ON "large_chunks"("pack_id");

-- CreateIndex
CREATE INDEX "large_chunks_unused" ON "large_chunks"("unused_since") WHERE (unused_since IS NOT NULL);

-- CreateIndex
CREATE INDEX "large_packs_store_id_idx" ON "large_packs"("store_id");

-- CreateIndex
CREATE INDEX "large_packs_small" ON "large_packs"("store_id", "tier") WHERE (state = 'kept' AND tier IS NOT NULL);

-- CreateIndex
CREATE INDEX "large_packs_changed" ON "large_packs"("id") WHERE (changed);

-- CreateIndex
CREATE INDEX "large_packs_passing" ON "large_packs"("since") WHERE (state <> 'kept');

-- CreateIndex
CREATE INDEX "idempotent_requests_created_at_idx" ON "idempotent_requests"("created_at");

-- AddForeignKey
ALTER TABLE "namespaces" ADD CONSTRAINT "namespaces_user_id_fkey" FOREIGN KEY ("user_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "storage_reservations" ADD CONSTRAINT "storage_reservations_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

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
ALTER TABLE "browser_sessions" ADD CONSTRAINT "browser_sessions_user_id_fkey" FOREIGN KEY ("user_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "browser_sessions" ADD CONSTRAINT "browser_sessions_access_token_id_fkey" FOREIGN KEY ("access_token_id") REFERENCES "access_tokens"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "identities" ADD CONSTRAINT "identities_user_id_fkey" FOREIGN KEY ("user_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "device_requests" ADD CONSTRAINT "device_requests_user_id_fkey" FOREIGN KEY ("user_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "device_guesses" ADD CONSTRAINT "device_guesses_user_id_fkey" FOREIGN KEY ("user_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "sign_in_links" ADD CONSTRAINT "sign_in_links_user_id_fkey" FOREIGN KEY ("user_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "ssh_keys" ADD CONSTRAINT "ssh_keys_user_id_fkey" FOREIGN KEY ("user_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "ssh_keys" ADD CONSTRAINT "ssh_keys_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "repositories" ADD CONSTRAINT "repositories_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE RESTRICT ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "file_locks" ADD CONSTRAINT "file_locks_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "file_locks" ADD CONSTRAINT "file_locks_owner_id_fkey" FOREIGN KEY ("owner_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "branch_rules" ADD CONSTRAINT "branch_rules_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "commit_statuses" ADD CONSTRAINT "commit_statuses_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "run_triggers" ADD CONSTRAINT "run_triggers_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "runs" ADD CONSTRAINT "runs_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "runs" ADD CONSTRAINT "runs_created_by_id_fkey" FOREIGN KEY ("created_by_id") REFERENCES "users"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "deleted_run_jobs" ADD CONSTRAINT "deleted_run_jobs_run_id_fkey" FOREIGN KEY ("run_id") REFERENCES "runs"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "schedules" ADD CONSTRAINT "schedules_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "schedules" ADD CONSTRAINT "schedules_created_by_id_fkey" FOREIGN KEY ("created_by_id") REFERENCES "users"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "allowed_secrets" ADD CONSTRAINT "allowed_secrets_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "stored_values" ADD CONSTRAINT "stored_values_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "stored_values" ADD CONSTRAINT "stored_values_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "jobs" ADD CONSTRAINT "jobs_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE RESTRICT ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "jobs" ADD CONSTRAINT "jobs_created_by_id_fkey" FOREIGN KEY ("created_by_id") REFERENCES "users"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "jobs" ADD CONSTRAINT "jobs_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "jobs" ADD CONSTRAINT "jobs_array_id_fkey" FOREIGN KEY ("array_id") REFERENCES "job_arrays"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "job_needs" ADD CONSTRAINT "job_needs_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "job_arrays" ADD CONSTRAINT "job_arrays_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "snapshots" ADD CONSTRAINT "snapshots_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "job_labels" ADD CONSTRAINT "job_labels_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "kept_artifacts" ADD CONSTRAINT "kept_artifacts_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE RESTRICT ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "kept_artifacts" ADD CONSTRAINT "kept_artifacts_created_by_id_fkey" FOREIGN KEY ("created_by_id") REFERENCES "users"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "kept_artifacts" ADD CONSTRAINT "kept_artifacts_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "job_attempts" ADD CONSTRAINT "job_attempts_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "attempt_usage" ADD CONSTRAINT "attempt_usage_attempt_id_fkey" FOREIGN KEY ("attempt_id") REFERENCES "job_attempts"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "usage_days" ADD CONSTRAINT "usage_days_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "budgets" ADD CONSTRAINT "budgets_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "budget_notices" ADD CONSTRAINT "budget_notices_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "retention_rules" ADD CONSTRAINT "retention_rules_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "queue_shares" ADD CONSTRAINT "queue_shares_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "queue_lines" ADD CONSTRAINT "queue_lines_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "webhooks" ADD CONSTRAINT "webhooks_created_by_id_fkey" FOREIGN KEY ("created_by_id") REFERENCES "users"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "webhook_namespaces" ADD CONSTRAINT "webhook_namespaces_webhook_id_fkey" FOREIGN KEY ("webhook_id") REFERENCES "webhooks"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "webhook_namespaces" ADD CONSTRAINT "webhook_namespaces_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "webhook_queues" ADD CONSTRAINT "webhook_queues_webhook_id_fkey" FOREIGN KEY ("webhook_id") REFERENCES "webhooks"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "large_stores" ADD CONSTRAINT "large_stores_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "large_uploads" ADD CONSTRAINT "large_uploads_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "large_upload_pages" ADD CONSTRAINT "large_upload_pages_repository_id_oid_fkey" FOREIGN KEY ("repository_id", "oid") REFERENCES "large_uploads"("repository_id", "oid") ON DELETE CASCADE ON UPDATE CASCADE;

-- The rest is what a Prisma schema cannot express.

-- `event_clock` has exactly one row.
ALTER TABLE "event_clock" ADD CONSTRAINT "event_clock_one_row" CHECK ("only");
INSERT INTO "event_clock" DEFAULT VALUES;

-- The store that all repositories share which deduplicate large files with others.
INSERT INTO "large_stores" DEFAULT VALUES;

-- Hashes do not compress.
ALTER TABLE "large_recipes" ALTER COLUMN "chunks" SET STORAGE EXTERNAL;

-- PostgreSQL chooses between the index of a label and the order of creation by how frequent the label is. The columns depend
-- on each other, so the product of their own frequencies is far too low.
CREATE STATISTICS "job_labels_frequencies" (mcv) ON "key", "value", "namespace_id" FROM "job_labels";

-- A claim and an end change a job in place (heap-only tuples), which needs free space in the page.
ALTER TABLE "jobs" SET (fillfactor = 80);

-- The rows of the queue change with every job: vacuum them often, and leave room to change them in place.
ALTER TABLE "queue_shares" SET (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
ALTER TABLE "queue_lines" SET (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

ALTER TABLE stored_values
  ADD CONSTRAINT stored_values_one_owner CHECK (num_nonnulls(namespace_id, repository_id) = 1),
  -- The value of a secret is never stored unencrypted.
  ADD CONSTRAINT stored_values_by_kind CHECK (
    CASE kind WHEN 'secret' THEN sealed IS NOT NULL AND value IS NULL ELSE value IS NOT NULL AND sealed IS NULL END);

ALTER TABLE budgets ADD CONSTRAINT budgets_owner CHECK (owner IN ('namespace', 'operator'));
ALTER TABLE budgets ADD CONSTRAINT budgets_on_reached CHECK (on_reached IN ('refuse', 'cancel'));
ALTER TABLE budgets ADD CONSTRAINT budgets_amount CHECK (amount > 0);
