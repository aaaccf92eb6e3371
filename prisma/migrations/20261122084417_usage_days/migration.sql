-- CreateTable
CREATE TABLE "usage_days" (
    "namespace_id" TEXT NOT NULL,
    "day" DATE NOT NULL,
    "user_id" TEXT NOT NULL,
    "seconds" BIGINT NOT NULL,
    "gpu_seconds" BIGINT NOT NULL,
    "price_seconds" DECIMAL(30,4) NOT NULL,
    "jobs" INTEGER NOT NULL,

    CONSTRAINT "usage_days_pkey" PRIMARY KEY ("namespace_id","day","user_id")
);

-- AddForeignKey
ALTER TABLE "usage_days" ADD CONSTRAINT "usage_days_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- By hand: what jobs ran until now. An attempt counts from its start to its end, and one of a job that was cancelled
-- until then; what was lost counts nothing, as in the jobs themselves. Each day is rounded at its ends alone.
INSERT INTO "usage_days" ("namespace_id", "day", "user_id", "seconds", "gpu_seconds", "price_seconds", "jobs")
WITH ran AS (
  SELECT j.namespace_id, coalesce(j.created_by_id, '') AS user_id, j.cost_per_hour,
    CASE WHEN j.gpu = 'none' THEN 0 ELSE j.gpu_count END AS gpus, a.started_at AS began,
    greatest(0, round(extract(epoch FROM
      CASE WHEN j.status = 'cancelled' THEN least(a.ended_at, j.completed_at) ELSE a.ended_at END
      - a.started_at)))::bigint AS seconds
  FROM job_attempts a JOIN jobs j ON j.id = a.job_id
  WHERE a.started_at IS NOT NULL AND (a.outcome = 'exited' OR (j.status = 'cancelled'
    AND a.started_at <= j.completed_at AND (a.ended_at IS NULL OR a.ended_at >= j.completed_at)))
), parts AS (
  SELECT namespace_id, user_id, day::date AS day, gpus, cost_per_hour, 0 AS jobs,
    least(seconds, round(extract(epoch FROM (day + interval '1 day') AT TIME ZONE 'UTC' - began)))
    - greatest(0, round(extract(epoch FROM day AT TIME ZONE 'UTC' - began))) AS seconds
  FROM ran CROSS JOIN LATERAL generate_series(
    date_trunc('day', began AT TIME ZONE 'UTC'),
    date_trunc('day', (began + make_interval(secs => seconds)) AT TIME ZONE 'UTC'), interval '1 day'
  ) AS day
  UNION ALL
  SELECT namespace_id, coalesce(created_by_id, ''), (completed_at AT TIME ZONE 'UTC')::date, 0, 0, 1, 0
  FROM jobs WHERE completed_at IS NOT NULL
)
SELECT namespace_id, day, user_id, sum(seconds)::bigint, sum(seconds * gpus)::bigint,
  sum(seconds * cost_per_hour), sum(jobs)::int
FROM parts WHERE seconds > 0 OR jobs > 0 GROUP BY 1, 2, 3;
