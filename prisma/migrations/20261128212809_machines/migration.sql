-- CreateTable
CREATE TABLE "worker_tokens" (
    "id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "token_hash" BYTEA NOT NULL,
    "namespace_id" TEXT,
    "audit_namespace_id" TEXT NOT NULL,
    "regions" TEXT[],
    "labels" JSONB NOT NULL DEFAULT '[]',
    "created_by" TEXT NOT NULL,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "expires_at" TIMESTAMPTZ(3),
    "last_used_at" TIMESTAMPTZ(3),

    CONSTRAINT "worker_tokens_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "machines" (
    "id" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "token_id" TEXT NOT NULL,
    "namespace_id" TEXT,
    "regions" TEXT[],
    "labels" JSONB NOT NULL,
    "secret_hash" BYTEA NOT NULL,
    "facts" JSONB NOT NULL,
    "worker_id" TEXT,
    "joined_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "last_seen_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "silent_since" TIMESTAMPTZ(3),
    "drain_since" TIMESTAMPTZ(3),
    "drain_deadline" TIMESTAMPTZ(3),
    "history" JSONB NOT NULL DEFAULT '[]',

    CONSTRAINT "machines_pkey" PRIMARY KEY ("id")
);

-- CreateIndex
CREATE UNIQUE INDEX "worker_tokens_token_hash_key" ON "worker_tokens"("token_hash");

-- CreateIndex
CREATE INDEX "worker_tokens_namespace_id_idx" ON "worker_tokens"("namespace_id");

-- CreateIndex
CREATE UNIQUE INDEX "machines_name_key" ON "machines"("name");

-- CreateIndex
CREATE INDEX "machines_token_id_idx" ON "machines"("token_id");

-- CreateIndex
CREATE INDEX "machines_namespace_id_idx" ON "machines"("namespace_id");

-- AddForeignKey
ALTER TABLE "worker_tokens" ADD CONSTRAINT "worker_tokens_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "machines" ADD CONSTRAINT "machines_token_id_fkey" FOREIGN KEY ("token_id") REFERENCES "worker_tokens"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "machines" ADD CONSTRAINT "machines_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;
