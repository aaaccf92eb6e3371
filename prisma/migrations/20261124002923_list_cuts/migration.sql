-- AlterTable
ALTER TABLE "list_counts" ADD COLUMN     "range" INTEGER NOT NULL DEFAULT 0;

-- CreateTable
CREATE TABLE "list_cuts" (
    "namespace_id" TEXT NOT NULL,
    "list" TEXT NOT NULL,
    "column" TEXT NOT NULL,
    "times" TIMESTAMPTZ(3)[],
    "texts" TEXT[],
    "numbers" BIGINT[],
    "counted" BOOLEAN NOT NULL DEFAULT false,
    "fullest" BIGINT NOT NULL DEFAULT 0,

    CONSTRAINT "list_cuts_pkey" PRIMARY KEY ("namespace_id","list","column")
);

-- AddForeignKey
ALTER TABLE "list_cuts" ADD CONSTRAINT "list_cuts_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- By hand from here. As it was, with the ranges.
CREATE OR REPLACE FUNCTION fold_list_counts(of_namespace TEXT, of_list TEXT) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM list_counts WHERE id = ANY(ARRAY(
            SELECT id FROM list_counts WHERE namespace_id = of_namespace AND list = of_list
            FOR UPDATE SKIP LOCKED))
        RETURNING value, started, completed, range, n)
    INSERT INTO list_counts (namespace_id, list, value, started, completed, range, n)
    SELECT of_namespace, of_list, value, started, completed, range, sum(n) FROM gone
    GROUP BY value, started, completed, range HAVING sum(n) <> 0;
END
$$;

-- The range that a value is in: 0 is the lowest, and range i begins with value i of the array.
CREATE FUNCTION range_of(cut list_cuts, value TEXT) RETURNS INTEGER LANGUAGE plpgsql AS $$
BEGIN
    IF cut.times IS NOT NULL THEN RETURN width_bucket(value::timestamptz, cut.times); END IF;
    IF cut.numbers IS NOT NULL THEN RETURN width_bucket(value::bigint, cut.numbers); END IF;
    RETURN width_bucket(value, cut.texts);
END
$$;

-- What rows are sorted and filtered by, and not all that a job has, which may be a megabyte.
CREATE FUNCTION sorted_by(job jobs) RETURNS JSONB LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('status', job.status, 'name', job.name, 'created_at', job.created_at,
        'started_at', job.started_at, 'completed_at', job.completed_at)
$$;
CREATE FUNCTION sorted_by(repository repositories) RETURNS JSONB LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('visibility', repository.visibility, 'name_key', repository.name_key,
        'created_at', repository.created_at, 'updated_at', repository.updated_at, 'size_bytes', repository.size_bytes)
$$;

-- For each list that is cut, a row where something leaves a range, and one where something comes into one. A namespace without
-- long lists has no cuts, and pays for one look. The argument: the column that lists are filtered by.
CREATE FUNCTION count_ranges() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    cut list_cuts;
    was JSONB;
    now_is JSONB;
    in_list TEXT;
    filter TEXT := TG_ARGV[0];
BEGIN
    FOR cut IN
        SELECT * FROM list_cuts c
        WHERE c.list = TG_TABLE_NAME AND c.namespace_id IN (OLD.namespace_id, NEW.namespace_id)
    LOOP
        IF was IS NULL AND now_is IS NULL THEN
            IF TG_OP <> 'INSERT' THEN was := sorted_by(OLD); END IF;
            IF TG_OP <> 'DELETE' THEN now_is := sorted_by(NEW); END IF;
        END IF;
        CONTINUE WHEN TG_OP = 'UPDATE' AND OLD.namespace_id = NEW.namespace_id
            AND was -> cut."column" = now_is -> cut."column" AND was -> filter = now_is -> filter;
        in_list := cut.list || '/' || cut."column";
        -- What has no value is in no range.
        IF OLD.namespace_id = cut.namespace_id AND was ->> cut."column" IS NOT NULL THEN
            INSERT INTO list_counts (namespace_id, list, value, started, completed, range, n) VALUES
                (cut.namespace_id, in_list, was ->> filter, false, false, range_of(cut, was ->> cut."column"), -1);
        END IF;
        IF NEW.namespace_id = cut.namespace_id AND now_is ->> cut."column" IS NOT NULL THEN
            INSERT INTO list_counts (namespace_id, list, value, started, completed, range, n) VALUES
                (cut.namespace_id, in_list, now_is ->> filter, false, false, range_of(cut, now_is ->> cut."column"), 1);
        END IF;
        -- A list has some 300 rows then, of 50 ranges and what it is filtered by.
        IF random() < 0.005 THEN PERFORM fold_list_counts(cut.namespace_id, in_list); END IF;
    END LOOP;
    RETURN NULL;
END
$$;

CREATE TRIGGER count_ranges
    AFTER INSERT OR DELETE OR UPDATE OF namespace_id, status, name, created_at, started_at, completed_at ON jobs
    FOR EACH ROW EXECUTE FUNCTION count_ranges('status');
CREATE TRIGGER count_ranges
    AFTER INSERT OR DELETE OR UPDATE OF namespace_id, visibility, name_key, created_at, updated_at, size_bytes ON repositories
    FOR EACH ROW EXECUTE FUNCTION count_ranges('visibility');
