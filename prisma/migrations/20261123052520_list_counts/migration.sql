-- Replaced by those that have the visibility as well.
-- DropIndex
DROP INDEX "repositories_namespace_id_created_at_id_idx";

-- DropIndex
DROP INDEX "repositories_namespace_id_size_bytes_id_idx";

-- DropIndex
DROP INDEX "repositories_namespace_id_updated_at_id_idx";

-- CreateTable
CREATE TABLE "list_counts" (
    "id" BIGSERIAL NOT NULL,
    "namespace_id" TEXT NOT NULL,
    "list" TEXT NOT NULL,
    "value" TEXT NOT NULL,
    "started" BOOLEAN NOT NULL,
    "completed" BOOLEAN NOT NULL,
    "n" BIGINT NOT NULL,

    CONSTRAINT "list_counts_pkey" PRIMARY KEY ("id")
);

-- CreateIndex
CREATE INDEX "list_counts_namespace_id_list_idx" ON "list_counts"("namespace_id", "list");

-- CreateIndex: jobs that have not started stand at the end of both orders
CREATE INDEX "jobs_namespace_id_started_at_id_status_idx" ON "jobs"("namespace_id", "started_at" DESC NULLS LAST, "id" DESC, "status");

-- CreateIndex
CREATE INDEX "jobs_namespace_id_completed_at_id_status_idx" ON "jobs"("namespace_id", "completed_at" DESC NULLS LAST, "id" DESC, "status");

-- CreateIndex
CREATE INDEX "jobs_namespace_id_status_name_idx" ON "jobs"("namespace_id", "status", "name");

-- CreateIndex
CREATE INDEX "repositories_namespace_id_updated_at_id_visibility_idx" ON "repositories"("namespace_id", "updated_at" DESC, "id" DESC, "visibility");

-- CreateIndex
CREATE INDEX "repositories_namespace_id_created_at_id_visibility_idx" ON "repositories"("namespace_id", "created_at" DESC, "id" DESC, "visibility");

-- CreateIndex
CREATE INDEX "repositories_namespace_id_size_bytes_id_visibility_idx" ON "repositories"("namespace_id", "size_bytes", "id", "visibility");

-- CreateIndex
CREATE INDEX "repositories_namespace_id_visibility_name_key_idx" ON "repositories"("namespace_id", "visibility", "name_key");

-- Adds up the rows of a list. Rows that another transaction adds up are passed over, so that none waits for another.
CREATE FUNCTION fold_list_counts(of_namespace TEXT, of_list TEXT) RETURNS void LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM list_counts WHERE id = ANY(ARRAY(
            SELECT id FROM list_counts WHERE namespace_id = of_namespace AND list = of_list
            FOR UPDATE SKIP LOCKED))
        RETURNING value, started, completed, n)
    INSERT INTO list_counts (namespace_id, list, value, started, completed, n)
    SELECT of_namespace, of_list, value, started, completed, sum(n) FROM gone
    GROUP BY value, started, completed HAVING sum(n) <> 0
$$;

-- A sum reads some forty rows, and a change in forty adds them up.
CREATE FUNCTION count_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO list_counts (namespace_id, list, value, started, completed, n)
        VALUES (OLD.namespace_id, 'jobs', OLD.status, OLD.started_at IS NOT NULL, OLD.completed_at IS NOT NULL, -1);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO list_counts (namespace_id, list, value, started, completed, n)
        VALUES (NEW.namespace_id, 'jobs', NEW.status, NEW.started_at IS NOT NULL, NEW.completed_at IS NOT NULL, 1);
    END IF;
    IF random() < 0.025 THEN
        PERFORM fold_list_counts(CASE TG_OP WHEN 'DELETE' THEN OLD.namespace_id ELSE NEW.namespace_id END, 'jobs');
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER count_jobs AFTER INSERT OR DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION count_jobs();
CREATE TRIGGER count_changed_jobs AFTER UPDATE OF namespace_id, status, started_at, completed_at ON jobs
    FOR EACH ROW WHEN (
        OLD.namespace_id <> NEW.namespace_id OR OLD.status <> NEW.status
        OR (OLD.started_at IS NULL) <> (NEW.started_at IS NULL)
        OR (OLD.completed_at IS NULL) <> (NEW.completed_at IS NULL))
    EXECUTE FUNCTION count_jobs();

CREATE FUNCTION count_repositories() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO list_counts (namespace_id, list, value, started, completed, n)
        VALUES (OLD.namespace_id, 'repositories', OLD.visibility, false, false, -1);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO list_counts (namespace_id, list, value, started, completed, n)
        VALUES (NEW.namespace_id, 'repositories', NEW.visibility, false, false, 1);
    END IF;
    IF random() < 0.025 THEN
        PERFORM fold_list_counts(
            CASE TG_OP WHEN 'DELETE' THEN OLD.namespace_id ELSE NEW.namespace_id END, 'repositories');
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER count_repositories AFTER INSERT OR DELETE ON repositories
    FOR EACH ROW EXECUTE FUNCTION count_repositories();
CREATE TRIGGER count_changed_repositories AFTER UPDATE OF namespace_id, visibility ON repositories
    FOR EACH ROW WHEN (OLD.namespace_id <> NEW.namespace_id OR OLD.visibility <> NEW.visibility)
    EXECUTE FUNCTION count_repositories();

-- What there is. The triggers hold the tables by now, so nothing is added meanwhile.
INSERT INTO list_counts (namespace_id, list, value, started, completed, n)
SELECT namespace_id, 'jobs', status, started_at IS NOT NULL, completed_at IS NOT NULL, count(*)
FROM jobs GROUP BY 1, 3, 4, 5;
INSERT INTO list_counts (namespace_id, list, value, started, completed, n)
SELECT namespace_id, 'repositories', visibility, false, false, count(*) FROM repositories GROUP BY 1, 3;
