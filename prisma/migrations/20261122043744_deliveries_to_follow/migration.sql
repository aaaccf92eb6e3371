-- CreateIndex
CREATE INDEX "deliveries_failed" ON "deliveries"("webhook_id", "id" DESC) WHERE (status = 'failed');

-- CreateIndex
CREATE INDEX "deliveries_webhook_id_updated_at_id_idx" ON "deliveries"("webhook_id", "updated_at", "id");
