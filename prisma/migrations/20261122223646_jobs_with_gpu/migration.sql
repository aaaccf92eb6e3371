-- CreateIndex
CREATE INDEX "jobs_with_gpu" ON "jobs"("namespace_id", "gpu", "created_at" DESC, "id" DESC) WHERE (gpu <> 'none');
