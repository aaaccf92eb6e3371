-- CreateTable
CREATE TABLE "settings" (
    "name" TEXT NOT NULL,
    "value" BYTEA NOT NULL,

    CONSTRAINT "settings_pkey" PRIMARY KEY ("name")
);
