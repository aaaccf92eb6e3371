-- AlterTable
ALTER TABLE "event_clock" ADD COLUMN     "removed_seq" BIGINT NOT NULL DEFAULT 0,
ADD COLUMN     "removed_xid" xid8 NOT NULL DEFAULT '0'::xid8;
