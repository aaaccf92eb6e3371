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

-- AddForeignKey
ALTER TABLE "allowed_secrets" ADD CONSTRAINT "allowed_secrets_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;
