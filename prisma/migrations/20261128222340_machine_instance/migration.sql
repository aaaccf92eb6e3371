-- AlterTable
ALTER TABLE "machines" ADD COLUMN     "instance" TEXT;

