-- AlterTable
ALTER TABLE "repositories" ADD COLUMN     "records" INTEGER NOT NULL DEFAULT 0;

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
