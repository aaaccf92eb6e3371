-- CreateEnum
CREATE TYPE "StoredKind" AS ENUM ('secret', 'variable');

-- AlterTable
ALTER TABLE "job_attempts" ADD COLUMN     "given_values" BYTEA;

-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "command_from_ref" BOOLEAN NOT NULL DEFAULT false,
ADD COLUMN     "secret_names" TEXT[] DEFAULT ARRAY[]::TEXT[],
ADD COLUMN     "tag" TEXT,
ADD COLUMN     "variable_names" TEXT[] DEFAULT ARRAY[]::TEXT[];

-- CreateTable
CREATE TABLE "stored_values" (
    "id" TEXT NOT NULL,
    "kind" "StoredKind" NOT NULL,
    "namespace_id" TEXT,
    "repository_id" TEXT,
    "name" TEXT NOT NULL,
    "value" TEXT,
    "sealed" BYTEA,
    "refs" TEXT[] DEFAULT ARRAY[]::TEXT[],
    "updated_by" TEXT NOT NULL,
    "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updated_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "last_used_at" TIMESTAMPTZ(3),

    CONSTRAINT "stored_values_pkey" PRIMARY KEY ("id")
);

-- CreateIndex
CREATE UNIQUE INDEX "stored_values_namespace_id_kind_name_key" ON "stored_values"("namespace_id", "kind", "name");

-- CreateIndex
CREATE UNIQUE INDEX "stored_values_repository_id_kind_name_key" ON "stored_values"("repository_id", "kind", "name");

-- AddForeignKey
ALTER TABLE "stored_values" ADD CONSTRAINT "stored_values_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "stored_values" ADD CONSTRAINT "stored_values_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;

ALTER TABLE stored_values
  ADD CONSTRAINT stored_values_one_owner CHECK (num_nonnulls(namespace_id, repository_id) = 1),
  -- The value of a secret is never stored unencrypted.
  ADD CONSTRAINT stored_values_by_kind CHECK (
    CASE kind WHEN 'secret' THEN sealed IS NOT NULL AND value IS NULL ELSE value IS NOT NULL AND sealed IS NULL END);

-- The values that an attempt got are needed to mask its log, and no longer. Attempts end in several statements, and this trigger
-- clears the values in all of them.
CREATE FUNCTION clear_given_values() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.given_values := NULL;
  RETURN NEW;
END $$;
CREATE TRIGGER clear_given_values BEFORE UPDATE OF ended_at ON job_attempts
  FOR EACH ROW WHEN (NEW.ended_at IS NOT NULL AND NEW.given_values IS NOT NULL) EXECUTE FUNCTION clear_given_values();
