-- AlterTable
ALTER TABLE "large_objects" ADD COLUMN     "damaged" BOOLEAN NOT NULL DEFAULT false;
