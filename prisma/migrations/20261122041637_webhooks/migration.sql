-- CreateEnum
CREATE TYPE "DeliveryStatus" AS ENUM ('pending', 'succeeded', 'failed');

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
CREATE INDEX "deliveries_message_id_idx" ON "deliveries"("message_id");

-- AddForeignKey
ALTER TABLE "webhooks" ADD CONSTRAINT "webhooks_created_by_id_fkey" FOREIGN KEY ("created_by_id") REFERENCES "users"("id") ON DELETE SET NULL ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "webhook_namespaces" ADD CONSTRAINT "webhook_namespaces_webhook_id_fkey" FOREIGN KEY ("webhook_id") REFERENCES "webhooks"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "webhook_namespaces" ADD CONSTRAINT "webhook_namespaces_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "webhook_queues" ADD CONSTRAINT "webhook_queues_webhook_id_fkey" FOREIGN KEY ("webhook_id") REFERENCES "webhooks"("id") ON DELETE CASCADE ON UPDATE CASCADE;
