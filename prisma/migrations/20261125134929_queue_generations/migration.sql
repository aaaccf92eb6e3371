-- DropIndex
DROP INDEX "queue_order";

-- AlterTable
ALTER TABLE "queue_lines" DROP CONSTRAINT "queue_lines_pkey",
ADD COLUMN     "generation" INTEGER NOT NULL DEFAULT 0,
ADD CONSTRAINT "queue_lines_pkey" PRIMARY KEY ("namespace_id", "generation", "gpu", "region");

-- AlterTable
ALTER TABLE "queue_shares" DROP CONSTRAINT "queue_shares_pkey",
ADD COLUMN     "generation" INTEGER NOT NULL DEFAULT 0,
ADD CONSTRAINT "queue_shares_pkey" PRIMARY KEY ("namespace_id", "generation");

-- CreateTable
CREATE TABLE "queue_generation" (
    "only" BOOLEAN NOT NULL DEFAULT true,
    "number" INTEGER NOT NULL DEFAULT 0,

    CONSTRAINT "queue_generation_pkey" PRIMARY KEY ("only")
);

-- CreateIndex
CREATE INDEX "queue_order" ON "queue_lines"("generation", "gpu", "held", "served_at", "namespace_id", "line_served_at", "region") WHERE (open);

-- By hand from here: a row that another transaction keeps from being cleaned lies in the indexes before the present one, and
-- each claim passed by all of them. Now only those of the present generation are looked for.
ALTER TABLE "queue_generation" ADD CONSTRAINT "queue_generation_only" CHECK ("only");
INSERT INTO queue_generation DEFAULT VALUES;
ALTER TABLE queue_lines ALTER generation DROP DEFAULT;
ALTER TABLE queue_shares ALTER generation DROP DEFAULT;

-- As it was, for rows of the present generation, which the lock keeps as it is (`src/jobs/worker/renewal.ts`). Rows of
-- namespaces of which nothing waited are brought into it when they are changed.
CREATE OR REPLACE FUNCTION count_queue() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    namespace TEXT;
    present INTEGER;
    waited BOOLEAN := false;
    waits BOOLEAN := false;
    change INTEGER := 0;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        namespace := OLD.namespace_id;
        waited := OLD.status = 'queued' AND OLD.attempt_id IS NULL;
        change := change - (OLD.attempt_id IS NOT NULL)::int;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        namespace := NEW.namespace_id;
        waits := NEW.status = 'queued' AND NEW.attempt_id IS NULL;
        change := change + (NEW.attempt_id IS NOT NULL)::int;
    END IF;
    IF (waited = waits AND change = 0) OR (waited AND change = 1) THEN RETURN NULL; END IF;

    -- As a condition, which is carried out without a plan.
    IF pg_advisory_xact_lock_shared(465825750386) IS NULL THEN RETURN NULL; END IF;
    SELECT number INTO STRICT present FROM queue_generation;
    LOOP
        IF change <> 0 THEN
            UPDATE queue_shares SET held = held + change
            WHERE namespace_id = namespace AND generation = present;
        ELSE
            PERFORM FROM queue_shares WHERE namespace_id = namespace AND generation = present FOR UPDATE;
        END IF;
        EXIT WHEN FOUND;
        UPDATE queue_shares SET generation = present WHERE namespace_id = namespace AND generation < present;
        CONTINUE WHEN FOUND;
        -- Its namespace may be gone with it.
        IF TG_OP = 'DELETE' AND NOT EXISTS (SELECT FROM queue_shares WHERE namespace_id = namespace)
        THEN RETURN NULL; END IF;
        INSERT INTO queue_shares (namespace_id, generation) VALUES (namespace, present) ON CONFLICT DO NOTHING;
    END LOOP;
    IF change <> 0 THEN
        UPDATE queue_lines SET held = held + change
        WHERE namespace_id = namespace AND generation = present AND open;
    END IF;
    IF waits AND NOT waited THEN
        IF NOT EXISTS (
            SELECT FROM queue_lines
            WHERE namespace_id = namespace AND generation = present AND gpu = NEW.gpu AND region = NEW.region
        ) THEN
            UPDATE queue_lines SET generation = present
            WHERE namespace_id = namespace AND generation < present AND gpu = NEW.gpu AND region = NEW.region;
        END IF;
        INSERT INTO queue_lines AS l (namespace_id, generation, gpu, region, waiting, open, head, held, served_at)
        SELECT s.namespace_id, present, NEW.gpu, NEW.region, 1, true, NEW.id, s.held, s.served_at
        FROM queue_shares s WHERE s.namespace_id = namespace AND s.generation = present
        ON CONFLICT (namespace_id, generation, gpu, region) DO UPDATE SET
            waiting = l.waiting + 1, open = true,
            head = CASE WHEN l.open THEN LEAST(l.head, excluded.head) ELSE excluded.head END,
            held = excluded.held, served_at = excluded.served_at;
    ELSIF waited AND NOT waits THEN
        UPDATE queue_lines SET waiting = waiting - 1, open = waiting > 1
        WHERE namespace_id = namespace AND generation = present AND gpu = OLD.gpu AND region = OLD.region;
    END IF;
    RETURN NULL;
END
$$;
