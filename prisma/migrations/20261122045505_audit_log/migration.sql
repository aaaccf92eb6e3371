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

-- CreateIndex
CREATE INDEX "audit_entries_namespace_id_id_idx" ON "audit_entries"("namespace_id", "id" DESC);

-- CreateIndex
CREATE INDEX "audit_entries_namespace_id_action_id_idx" ON "audit_entries"("namespace_id", "action", "id" DESC);

-- CreateIndex
CREATE INDEX "audit_entries_actor_id_id_idx" ON "audit_entries"("actor_id", "id" DESC);
