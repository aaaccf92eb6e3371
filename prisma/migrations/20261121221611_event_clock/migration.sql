-- CreateTable
CREATE TABLE "event_clock" (
    "only" BOOLEAN NOT NULL DEFAULT true,
    "ahead" BIGINT NOT NULL DEFAULT 0,

    CONSTRAINT "event_clock_pkey" PRIMARY KEY ("only")
);

-- By hand from here, and the default after the function that it calls.
ALTER TABLE "event_clock" ADD CONSTRAINT "event_clock_one_row" CHECK ("only");
INSERT INTO "event_clock" DEFAULT VALUES;

-- The place of an event that this transaction writes.
CREATE FUNCTION event_xid() RETURNS xid8 LANGUAGE sql VOLATILE AS $$
    SELECT (pg_current_xact_id()::text::bigint + ahead)::text::xid8 FROM event_clock
$$;

-- Below it are the events of transactions older than every one still open.
CREATE FUNCTION event_horizon() RETURNS xid8 LANGUAGE sql STABLE AS $$
    SELECT (pg_snapshot_xmin(pg_current_snapshot())::text::bigint + ahead)::text::xid8 FROM event_clock
$$;

-- AlterTable
ALTER TABLE "events" ALTER COLUMN "xid" SET DEFAULT event_xid();
