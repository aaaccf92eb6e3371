-- CreateTable
CREATE TABLE "storage_reservations" (
    "id" TEXT NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "bytes" BIGINT NOT NULL,
    "expires_at" TIMESTAMPTZ(3) NOT NULL,

    CONSTRAINT "storage_reservations_pkey" PRIMARY KEY ("id")
);

-- CreateIndex
CREATE INDEX "storage_reservations_namespace_id_idx" ON "storage_reservations"("namespace_id");

-- AddForeignKey
ALTER TABLE "storage_reservations" ADD CONSTRAINT "storage_reservations_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;
