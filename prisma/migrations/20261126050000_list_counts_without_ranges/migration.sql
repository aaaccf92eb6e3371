-- Totals are counted per list again, not per range of a list.
DROP TRIGGER count_ranges ON jobs;
DROP TRIGGER count_ranges ON repositories;
DROP FUNCTION count_ranges();
DROP FUNCTION range_of(list_cuts, TEXT);
DROP FUNCTION sorted_by(jobs);
DROP FUNCTION sorted_by(repositories);
DELETE FROM list_counts WHERE list LIKE '%/%';

-- DropTable
DROP TABLE "list_cuts";

-- AlterTable
ALTER TABLE "list_counts" DROP COLUMN "range";

-- Replaces the rows of one list by their sums. Rows that another transaction has locked are skipped, so no transaction waits.
CREATE OR REPLACE FUNCTION fold_list_counts(of_namespace TEXT, of_list TEXT) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM list_counts WHERE id = ANY(ARRAY(
            SELECT id FROM list_counts WHERE namespace_id = of_namespace AND list = of_list
            FOR UPDATE SKIP LOCKED))
        RETURNING value, started, completed, n)
    INSERT INTO list_counts (namespace_id, list, value, started, completed, n)
    SELECT of_namespace, of_list, value, started, completed, sum(n) FROM gone
    GROUP BY value, started, completed HAVING sum(n) <> 0;
END
$$;
