-- CreateEnum
CREATE TYPE "ShellAccess" AS ENUM ('allowed', 'none');

-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "shell_access" "ShellAccess" NOT NULL DEFAULT 'allowed';

-- AlterTable
ALTER TABLE "namespaces" ADD COLUMN     "shell_access" "ShellAccess" NOT NULL DEFAULT 'allowed';

