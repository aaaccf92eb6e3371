-- CreateIndex
CREATE INDEX "large_packs_store_id_idx" ON "large_packs"("store_id");
