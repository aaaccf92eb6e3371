-- AlterTable
ALTER TABLE "device_requests" ADD COLUMN     "device_name" TEXT;
