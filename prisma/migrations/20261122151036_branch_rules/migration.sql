-- CreateTable
CREATE TABLE "branch_rules" (
    "repository_id" TEXT NOT NULL,
    "pattern" TEXT NOT NULL,
    "push_role" "Role" NOT NULL DEFAULT 'write',
    "pusher_ids" TEXT[],
    "allows_force_pushes" BOOLEAN NOT NULL DEFAULT false,
    "allows_deletions" BOOLEAN NOT NULL DEFAULT false,
    "updated_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "branch_rules_pkey" PRIMARY KEY ("repository_id","pattern")
);

-- AddForeignKey
ALTER TABLE "branch_rules" ADD CONSTRAINT "branch_rules_repository_id_fkey" FOREIGN KEY ("repository_id") REFERENCES "repositories"("id") ON DELETE CASCADE ON UPDATE CASCADE;
