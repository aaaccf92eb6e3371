-- DropIndex
DROP INDEX "repositories_open";

-- CreateTable
CREATE TABLE "device_requests" (
    "id" TEXT NOT NULL,
    "device_hash" BYTEA NOT NULL,
    "user_hash" BYTEA NOT NULL,
    "client" TEXT NOT NULL,
    "scopes" TEXT[],
    "days" INTEGER NOT NULL,
    "address" TEXT,
    "status" TEXT NOT NULL DEFAULT 'pending',
    "user_id" TEXT,
    "token_name" TEXT,
    "interval" INTEGER NOT NULL,
    "polled_at" TIMESTAMPTZ(3),
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "expires_at" TIMESTAMPTZ(3) NOT NULL,

    CONSTRAINT "device_requests_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "device_guesses" (
    "user_id" TEXT NOT NULL,
    "wrong" INTEGER NOT NULL,
    "since" TIMESTAMPTZ(3) NOT NULL,

    CONSTRAINT "device_guesses_pkey" PRIMARY KEY ("user_id")
);

-- CreateIndex
CREATE UNIQUE INDEX "device_requests_device_hash_key" ON "device_requests"("device_hash");

-- CreateIndex
CREATE UNIQUE INDEX "device_requests_user_hash_key" ON "device_requests"("user_hash");

-- CreateIndex
CREATE INDEX "device_requests_address_expires_at_idx" ON "device_requests"("address", "expires_at");

-- CreateIndex
CREATE INDEX "device_requests_user_id_idx" ON "device_requests"("user_id");

-- CreateIndex
CREATE INDEX "device_requests_expires_at_idx" ON "device_requests"("expires_at");

-- CreateIndex
CREATE INDEX "device_guesses_since_idx" ON "device_guesses"("since");

-- CreateIndex
CREATE INDEX "repositories_open" ON "repositories"("name_key" text_pattern_ops) WHERE (visibility <> 'private');

-- AddForeignKey
ALTER TABLE "device_requests" ADD CONSTRAINT "device_requests_user_id_fkey" FOREIGN KEY ("user_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "device_guesses" ADD CONSTRAINT "device_guesses_user_id_fkey" FOREIGN KEY ("user_id") REFERENCES "users"("id") ON DELETE CASCADE ON UPDATE CASCADE;
