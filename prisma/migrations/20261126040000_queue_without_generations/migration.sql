-- DropIndex
DROP INDEX "queue_order";

-- AlterTable
ALTER TABLE "queue_lines" DROP CONSTRAINT "queue_lines_pkey",
DROP COLUMN "generation",
ADD CONSTRAINT "queue_lines_pkey" PRIMARY KEY ("namespace_id", "gpu", "region");

-- AlterTable
ALTER TABLE "queue_shares" DROP CONSTRAINT "queue_shares_pkey",
DROP COLUMN "generation",
ADD CONSTRAINT "queue_shares_pkey" PRIMARY KEY ("namespace_id");

-- DropTable
DROP TABLE "queue_generation";

-- CreateIndex
CREATE INDEX "queue_order" ON "queue_lines"("gpu", "held", "served_at", "namespace_id", "line_served_at", "region") WHERE (open);

-- By hand from here: as it was before the rows had generations.
CREATE OR REPLACE FUNCTION count_queue() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    namespace TEXT;
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

    LOOP
        IF change <> 0 THEN
            UPDATE queue_shares SET held = held + change WHERE namespace_id = namespace;
        ELSE
            PERFORM FROM queue_shares WHERE namespace_id = namespace FOR UPDATE;
        END IF;
        EXIT WHEN FOUND;
        -- Its namespace may be gone with it.
        IF TG_OP = 'DELETE' THEN RETURN NULL; END IF;
        INSERT INTO queue_shares (namespace_id) VALUES (namespace) ON CONFLICT DO NOTHING;
    END LOOP;
    IF change <> 0 THEN
        UPDATE queue_lines SET held = held + change WHERE namespace_id = namespace AND open;
    END IF;
    IF waits AND NOT waited THEN
        INSERT INTO queue_lines AS l (namespace_id, gpu, region, waiting, open, head, held, served_at)
        SELECT s.namespace_id, NEW.gpu, NEW.region, 1, true, NEW.id, s.held, s.served_at
        FROM queue_shares s WHERE s.namespace_id = namespace
        ON CONFLICT (namespace_id, gpu, region) DO UPDATE SET
            waiting = l.waiting + 1, open = true,
            head = CASE WHEN l.open THEN LEAST(l.head, excluded.head) ELSE excluded.head END,
            held = excluded.held, served_at = excluded.served_at;
    ELSIF waited AND NOT waits THEN
        UPDATE queue_lines SET waiting = waiting - 1, open = waiting > 1
        WHERE namespace_id = namespace AND gpu = OLD.gpu AND region = OLD.region;
    END IF;
    RETURN NULL;
END
$$;
