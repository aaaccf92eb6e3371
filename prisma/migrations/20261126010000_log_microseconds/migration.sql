-- Times of lines in microseconds. More digits rewrite neither table.
ALTER TABLE "jobs" ALTER COLUMN "log_until" SET DATA TYPE TIMESTAMPTZ(6);
ALTER TABLE "journal_pages" ALTER COLUMN "until" SET DATA TYPE TIMESTAMPTZ(6);
