-- AlterTable
ALTER TABLE "jobs" ADD COLUMN     "log_bytes" BIGINT NOT NULL DEFAULT 0,
ADD COLUMN     "log_full" BOOLEAN NOT NULL DEFAULT false,
ADD COLUMN     "log_lines" BIGINT NOT NULL DEFAULT 0,
ADD COLUMN     "log_until" TIMESTAMPTZ(3);

-- CreateTable
CREATE TABLE "journal_pages" (
    "job_id" TEXT NOT NULL,
    "first_seq" BIGINT NOT NULL,
    "last_seq" BIGINT NOT NULL,
    "lines" INTEGER NOT NULL,
    "bytes" INTEGER NOT NULL,
    "until" TIMESTAMPTZ(3),
    "open" BOOLEAN NOT NULL,
    "compressed" BOOLEAN NOT NULL,
    "data" BYTEA NOT NULL,

    CONSTRAINT "journal_pages_pkey" PRIMARY KEY ("job_id","first_seq")
);

-- CreateIndex
CREATE INDEX "journal_pages_open" ON "journal_pages"("job_id", "first_seq") WHERE (open);

-- AddForeignKey
ALTER TABLE "journal_pages" ADD CONSTRAINT "journal_pages_job_id_fkey" FOREIGN KEY ("job_id") REFERENCES "jobs"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- By hand from here: what the log of a job takes is counted in its namespace, in whole steps of 64 KiB while the
-- job lasts, so that jobs that print do not wait for each other at their namespace's row at every line.
CREATE FUNCTION stored_log(bytes BIGINT, completed_at TIMESTAMPTZ) RETURNS BIGINT LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN completed_at IS NULL THEN bytes - bytes % 65536 ELSE bytes END
$$;

CREATE FUNCTION count_log_storage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM count_storage(OLD.namespace_id,
        CASE WHEN TG_OP = 'DELETE' THEN 0 ELSE stored_log(NEW.log_bytes, NEW.completed_at) END
        - stored_log(OLD.log_bytes, OLD.completed_at));
    RETURN NULL;
END
$$;

-- A page for every 64 KiB or 2,048 entries of a job's rows, and a new one where a number is missing. Rows whose job
-- is gone are left behind. `data` is the format of src/jobs/logs/pages.ts.
WITH measured AS (
    SELECT j.job_id, j.seq, j.kind, j.message, (extract(epoch FROM j.timestamp) * 1000)::bigint AS ms,
        max(j.timestamp) FILTER (WHERE j.kind = 'log') OVER so_far AS until,
        row_number() OVER so_far AS position,
        sum(octet_length(j.message) + 1) OVER so_far AS text
    FROM journal j JOIN jobs ON jobs.id = j.job_id
    WINDOW so_far AS (PARTITION BY j.job_id ORDER BY j.seq ROWS UNBOUNDED PRECEDING)
), placed AS (
    SELECT *, seq - position AS island, text / 65536 AS by_text, position / 2048 AS by_number FROM measured
), entries AS (
    SELECT *, ms - lag(ms, 1, 0::bigint) OVER page AS step, row_number() OVER page - 1 AS place FROM placed
    WINDOW page AS (PARTITION BY job_id, island, by_text, by_number ORDER BY seq)
), pages AS (
    SELECT job_id, min(seq) AS first_seq, max(seq) AS last_seq, max(until) AS until,
        count(*) FILTER (WHERE kind = 'log') AS lines,
        convert_to(json_build_object(
            't', json_agg(step ORDER BY seq),
            'm', json_agg(message ORDER BY seq),
            's', coalesce(json_agg(place ORDER BY seq) FILTER (WHERE kind = 'status'), '[]')
        )::text, 'UTF8') AS data
    FROM entries GROUP BY job_id, island, by_text, by_number
)
INSERT INTO journal_pages (job_id, first_seq, last_seq, lines, bytes, until, open, compressed, data)
SELECT job_id, first_seq, last_seq, lines, octet_length(data), until, false, false, data FROM pages;

UPDATE jobs SET log_lines = counted.lines, log_bytes = counted.bytes, log_until = counted.until
FROM (
    SELECT job_id, count(*) AS lines, sum(octet_length(message) + 1) AS bytes, max(timestamp) AS until
    FROM journal WHERE kind = 'log' GROUP BY job_id
) counted WHERE jobs.id = counted.job_id;

UPDATE namespaces n SET storage_bytes = storage_bytes
  + (SELECT COALESCE(SUM(stored_log(j.log_bytes, j.completed_at)), 0) FROM jobs j WHERE j.namespace_id = n.id);

CREATE TRIGGER count_log_storage AFTER UPDATE OF log_bytes, completed_at ON jobs FOR EACH ROW
    WHEN (stored_log(OLD.log_bytes, OLD.completed_at) <> stored_log(NEW.log_bytes, NEW.completed_at))
    EXECUTE FUNCTION count_log_storage();

CREATE TRIGGER count_deleted_log_storage AFTER DELETE ON jobs FOR EACH ROW
    WHEN (OLD.log_bytes > 0)
    EXECUTE FUNCTION count_log_storage();

-- DropTable
DROP TABLE "journal";

-- DropEnum
DROP TYPE "JournalKind";
