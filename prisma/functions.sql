-- Version 5
--
-- Functions and triggers: SQL that keeps a fact true whoever changes the rows. Above each stands what it keeps true and
-- who relies on it.
--
-- A server that starts applies this file after the migrations if its version is not below that of the database
-- (`src/platform/database/migrate.ts`). So each change raises the version, each statement must also work if its object exists, and
-- servers of the previous release must work with it. What is removed from the file, and a function whose parameters or result
-- change, needs a DROP ... IF EXISTS here.
--
-- Trigger functions are in PL/pgSQL, which prepares a plan once for each connection; a function in SQL, and the WHEN condition of
-- a trigger, are prepared again for each statement, which took 12 % of PostgreSQL's time for a claim and an end. So
-- conditions are in the functions.

-- ---------------------------------------------------------------------------------------------------------------------
-- The outbox: (xid, seq) orders events so that a reader that has read up to a cursor misses none, because an event of a
-- transaction that commits late has a higher xid than the horizon. `src/platform/events/cursor.ts` relies on it.
-- `event_clock.ahead` keeps xids growing after a restore into a cluster whose own counter is behind.

-- The xid of an event that this transaction writes.
CREATE OR REPLACE FUNCTION event_xid()
RETURNS xid8
LANGUAGE sql
AS $$
    SELECT (pg_current_xact_id()::text::bigint + ahead)::text::xid8 FROM event_clock
$$;

ALTER TABLE "events" ALTER COLUMN "xid" SET DEFAULT event_xid();

-- Events below it are of transactions that have ended: a reader may pass them.
CREATE OR REPLACE FUNCTION event_horizon()
RETURNS xid8
LANGUAGE sql
STABLE
AS $$
    SELECT (pg_snapshot_xmin(pg_current_snapshot())::text::bigint + ahead)::text::xid8 FROM event_clock
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- namespaces.storage_bytes is the sum of what the namespace keeps: repositories with their large files and caches, artifacts of jobs,
-- kept artifacts, checkpoints, summaries, test reports, and logs. Quotas read this one row (`src/platform/limits/quotas.ts`).

CREATE OR REPLACE FUNCTION count_storage(namespace text, bytes bigint)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF bytes <> 0 THEN
        UPDATE namespaces SET storage_bytes = storage_bytes + bytes WHERE id = namespace;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION count_repository_storage()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.namespace_id = NEW.namespace_id THEN
        PERFORM count_storage(NEW.namespace_id,
            NEW.size_bytes + NEW.cache_bytes - OLD.size_bytes - OLD.cache_bytes);
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN PERFORM count_storage(OLD.namespace_id, -OLD.size_bytes - OLD.cache_bytes); END IF;
    IF TG_OP <> 'DELETE' THEN PERFORM count_storage(NEW.namespace_id, NEW.size_bytes + NEW.cache_bytes); END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER count_storage AFTER INSERT OR DELETE OR UPDATE OF size_bytes, cache_bytes, namespace_id ON repositories
FOR EACH ROW EXECUTE FUNCTION count_repository_storage();

CREATE OR REPLACE FUNCTION count_artifact_storage()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM count_storage(OLD.namespace_id, -COALESCE(OLD.artifact_bytes, 0));
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM count_storage(NEW.namespace_id, COALESCE(NEW.artifact_bytes, 0));
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER count_storage AFTER INSERT OR DELETE OR UPDATE OF artifact_bytes ON jobs
FOR EACH ROW EXECUTE FUNCTION count_artifact_storage();

CREATE OR REPLACE FUNCTION count_kept_storage()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN PERFORM count_storage(OLD.namespace_id, -OLD.size_bytes);
    ELSE PERFORM count_storage(NEW.namespace_id, NEW.size_bytes); END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER count_storage AFTER INSERT OR DELETE ON kept_artifacts
FOR EACH ROW EXECUTE FUNCTION count_kept_storage();

CREATE OR REPLACE FUNCTION count_checkpoint_storage()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM count_storage(OLD.namespace_id,
        CASE WHEN TG_OP = 'DELETE' THEN 0 ELSE NEW.size_bytes END - OLD.size_bytes);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER count_storage AFTER DELETE OR UPDATE OF size_bytes ON checkpoints
FOR EACH ROW EXECUTE FUNCTION count_checkpoint_storage();

CREATE OR REPLACE FUNCTION count_report_storage()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN PERFORM count_storage(OLD.namespace_id, -OLD.size_bytes); END IF;
    IF TG_OP <> 'DELETE' THEN PERFORM count_storage(NEW.namespace_id, NEW.size_bytes); END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER count_storage AFTER INSERT OR DELETE OR UPDATE OF size_bytes ON job_summaries
FOR EACH ROW EXECUTE FUNCTION count_report_storage();

CREATE OR REPLACE TRIGGER count_storage AFTER INSERT OR DELETE OR UPDATE OF size_bytes ON test_reports
FOR EACH ROW EXECUTE FUNCTION count_report_storage();

-- While a job runs, its log counts in whole steps of 64 KiB, so that jobs that print do not wait for each other at the row of
-- their namespace with every line. Each point of a metric counts as 24 bytes (`src/jobs/metrics/collect.ts`).
CREATE OR REPLACE FUNCTION stored_log(bytes bigint, completed_at timestamptz)
RETURNS bigint
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT CASE WHEN completed_at IS NULL THEN bytes - bytes % 65536 ELSE bytes END
$$;

CREATE OR REPLACE FUNCTION count_log_storage()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM count_storage(OLD.namespace_id,
        CASE WHEN TG_OP = 'DELETE' THEN 0
            ELSE stored_log(NEW.log_bytes + 24 * NEW.metric_points, NEW.completed_at) END
        - stored_log(OLD.log_bytes + 24 * OLD.metric_points, OLD.completed_at));
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER count_log_storage AFTER DELETE OR UPDATE OF log_bytes, metric_points, completed_at ON jobs
FOR EACH ROW EXECUTE FUNCTION count_log_storage();

-- ---------------------------------------------------------------------------------------------------------------------
-- The sum of the rows of list_counts for a list and its filters is the exact length of the list in every snapshot. Each
-- change adds rows and updates none, so that no transaction waits for another; about each fortieth change replaces the
-- rows by their sums. `src/platform/database/offset-page.ts` reads them.

-- Replaces the rows of one list by their sums. It skips rows that another transaction has locked, so it never waits.
CREATE OR REPLACE FUNCTION fold_list_counts(of_namespace text, of_list text)
RETURNS void
LANGUAGE plpgsql
AS $$
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

CREATE OR REPLACE FUNCTION count_jobs()
RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    namespace TEXT;
BEGIN
    IF TG_OP = 'INSERT' THEN
        namespace := NEW.namespace_id;
        INSERT INTO list_counts (namespace_id, list, value, started, completed, n) VALUES
            (namespace, 'jobs', NEW.status, NEW.started_at IS NOT NULL, NEW.completed_at IS NOT NULL, 1);
    ELSIF TG_OP = 'DELETE' THEN
        namespace := OLD.namespace_id;
        INSERT INTO list_counts (namespace_id, list, value, started, completed, n) VALUES
            (namespace, 'jobs', OLD.status, OLD.started_at IS NOT NULL, OLD.completed_at IS NOT NULL, -1);
    ELSE
        namespace := NEW.namespace_id;
        IF OLD.namespace_id = namespace AND OLD.status = NEW.status
            AND (OLD.started_at IS NULL) = (NEW.started_at IS NULL)
            AND (OLD.completed_at IS NULL) = (NEW.completed_at IS NULL)
        THEN RETURN NULL; END IF;
        INSERT INTO list_counts (namespace_id, list, value, started, completed, n) VALUES
            (OLD.namespace_id, 'jobs', OLD.status, OLD.started_at IS NOT NULL, OLD.completed_at IS NOT NULL, -1),
            (namespace, 'jobs', NEW.status, NEW.started_at IS NOT NULL, NEW.completed_at IS NOT NULL, 1);
    END IF;
    IF random() < 0.025 THEN PERFORM fold_list_counts(namespace, 'jobs'); END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER count_jobs AFTER INSERT OR DELETE OR UPDATE OF namespace_id, status, started_at, completed_at ON jobs
FOR EACH ROW EXECUTE FUNCTION count_jobs();

CREATE OR REPLACE FUNCTION count_repositories()
RETURNS trigger
LANGUAGE plpgsql
AS $$
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

CREATE OR REPLACE TRIGGER count_repositories AFTER INSERT OR DELETE ON repositories
FOR EACH ROW EXECUTE FUNCTION count_repositories();

CREATE OR REPLACE TRIGGER count_changed_repositories AFTER UPDATE OF namespace_id, visibility ON repositories
FOR EACH ROW WHEN (OLD.namespace_id <> NEW.namespace_id OR OLD.visibility <> NEW.visibility)
EXECUTE FUNCTION count_repositories();

-- ---------------------------------------------------------------------------------------------------------------------
-- queue_shares.held is the number of attempts of a namespace; queue_lines has, for each namespace, GPU and region, how many jobs
-- wait, the first of them, and a copy of held, so that the next job in fair order is the first entry of an index
-- (`src/jobs/worker/claim.ts`). One change is left out here: that a queued job gets an attempt. The claim counts it, once for
-- many jobs. A blocked job is not in the queue. It enters the queue when it is unblocked, at the place of its id: the head of
-- its line moves back to it.
--
-- Locks: whoever changes the counts of a namespace locks its row of queue_shares first. The trigger is deferred to the end of the
-- transaction, so the holder of this lock waits for no other lock, and others wait for one commit at most.
-- enable_seqscan is off because while these tables are small, dead versions that an open transaction keeps would be read
-- by each scan.
CREATE OR REPLACE FUNCTION count_queue()
RETURNS trigger
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    namespace TEXT;
    waited BOOLEAN := false;
    waits BOOLEAN := false;
    change INTEGER := 0;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        namespace := OLD.namespace_id;
        waited := OLD.status = 'queued' AND OLD.attempt_id IS NULL AND NOT OLD.blocked;
        change := change - (OLD.attempt_id IS NOT NULL)::int;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        namespace := NEW.namespace_id;
        waits := NEW.status = 'queued' AND NEW.attempt_id IS NULL AND NOT NEW.blocked;
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
        -- The namespace may have been deleted with the job.
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

DROP TRIGGER IF EXISTS count_queue ON jobs;
CREATE CONSTRAINT TRIGGER count_queue AFTER INSERT OR DELETE OR UPDATE OF status, attempt_id, blocked ON jobs
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_queue();

-- ---------------------------------------------------------------------------------------------------------------------
-- Whatever deletes a job or a repository, cascades included, leaves a note, by which the maintenance tasks find the log pages
-- (`src/jobs/logs/removal.ts`) and the large files (`src/repositories/lfs/store/sweep.ts`) to remove.

-- Retention may have noted the log of the job already, and its pages are still being removed.
CREATE OR REPLACE FUNCTION note_deleted_journal()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO deleted_journals (job_id)
    SELECT OLD.id WHERE EXISTS (SELECT FROM journal_pages WHERE job_id = OLD.id)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER note_deleted_journal AFTER DELETE ON jobs
FOR EACH ROW EXECUTE FUNCTION note_deleted_journal();

CREATE OR REPLACE FUNCTION note_deleted_large_files()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO deleted_large_files (repository_id)
    SELECT OLD.id WHERE EXISTS (SELECT FROM large_files WHERE repository_id = OLD.id)
        OR EXISTS (SELECT FROM job_caches WHERE repository_id = OLD.id);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER note_deleted_large_files AFTER DELETE ON repositories
FOR EACH ROW EXECUTE FUNCTION note_deleted_large_files();

-- ---------------------------------------------------------------------------------------------------------------------
-- Jobs that depend on others.

-- Whatever deletes a watched job, cascades included: jobs that need it still know how it ended, and the loop releases its slots
-- and tells the run (`src/jobs/dependencies/loop.ts`).
CREATE OR REPLACE FUNCTION note_deleted_watched_job()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF OLD.watched THEN
        UPDATE job_needs SET ended_as = OLD.status WHERE needed_id = OLD.id;
        INSERT INTO job_changes (job_id) VALUES (OLD.id);
    END IF;
    -- When the job that stands for an array in folded lists is deleted, the next one takes its place. Rows that the same
    -- statement deletes are no longer there when this runs.
    IF OLD.array_id IS NOT NULL AND NOT OLD.folded THEN
        UPDATE jobs SET folded = false WHERE id = (
            SELECT id FROM jobs WHERE array_id = OLD.array_id ORDER BY id LIMIT 1);
        IF NOT FOUND THEN DELETE FROM job_arrays WHERE id = OLD.array_id; END IF;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER note_deleted_watched_job AFTER DELETE ON jobs
FOR EACH ROW EXECUTE FUNCTION note_deleted_watched_job();

-- Wakes the loop whenever there is something to do.
CREATE OR REPLACE FUNCTION notify_job_changes()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('loam', 'job-changes');
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER notify_job_changes AFTER INSERT ON job_changes
FOR EACH STATEMENT EXECUTE FUNCTION notify_job_changes();

-- ---------------------------------------------------------------------------------------------------------------------
-- Budgets, secrets and runs.

-- What the jobs of a namespace have cost in the current month in UTC: the ledger, and what runs now. An attempt that ends at the
-- same time is in exactly one of both, because the function is one statement. An attempt that started in an earlier month counts
-- from the start of this month. Rounded as src/jobs/usage-ledger.ts does.
CREATE OR REPLACE FUNCTION month_cost(namespace text) RETURNS numeric LANGUAGE sql STABLE AS $$
  SELECT (
    (SELECT coalesce(sum(price_seconds), 0) FROM usage_days
     WHERE namespace_id = namespace AND day >= (date_trunc('month', now(), 'UTC') AT TIME ZONE 'UTC')::date)
    + (SELECT coalesce(sum(j.cost_per_hour * greatest(0, round(extract(epoch FROM
         coalesce(a.exited_at, now()) - greatest(a.started_at, date_trunc('month', now(), 'UTC')))))), 0)
       FROM jobs j JOIN job_attempts a ON a.id = j.attempt_id
       WHERE j.namespace_id = namespace AND j.attempt_id IS NOT NULL AND j.status = 'running'
         AND a.started_at IS NOT NULL)
  ) / 3600
$$;

-- No job is created in a namespace whose budget is reached, whichever way it is created. The check is in the transaction of the
-- insert, and for all jobs of a statement at once. src/jobs/budgets.ts turns the error into the answer of the API.
CREATE OR REPLACE FUNCTION refuse_jobs_over_budget() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (
    SELECT FROM budgets WHERE namespace_id IN (SELECT namespace_id FROM new_jobs) AND month_cost(namespace_id) >= amount
  ) THEN
    RAISE EXCEPTION 'jobs_within_budget' USING errcode = 'check_violation', constraint = 'jobs_within_budget';
  END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER jobs_within_budget AFTER INSERT ON jobs REFERENCING NEW TABLE AS new_jobs
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_jobs_over_budget();

-- The values that an attempt got are needed to mask its log, and no longer. Attempts end in several statements, and this trigger
-- clears the values in all of them.
CREATE OR REPLACE FUNCTION clear_given_values() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.given_values := NULL;
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER clear_given_values BEFORE UPDATE OF ended_at ON job_attempts
  FOR EACH ROW WHEN (NEW.ended_at IS NOT NULL AND NEW.given_values IS NOT NULL) EXECUTE FUNCTION clear_given_values();

-- Whatever deletes a job of a run, a user or retention: the run keeps how it ended (`src/automation/runs/results.ts`). Otherwise a
-- job of the file would count as succeeded once the combination that failed is gone.
CREATE OR REPLACE FUNCTION keep_result_of_run_job()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF OLD.run_id IS NOT NULL THEN
        INSERT INTO deleted_run_jobs (job_id, run_id, run_job, status, started_at, completed_at)
        SELECT OLD.id, r.id, OLD.run_job, OLD.status, OLD.started_at, OLD.completed_at
        FROM runs r WHERE r.id = OLD.run_id;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER keep_result_of_run_job AFTER DELETE ON jobs
FOR EACH ROW EXECUTE FUNCTION keep_result_of_run_job();
