-- CreateTable
CREATE TABLE "budgets" (
    "namespace_id" TEXT NOT NULL,
    "owner" TEXT NOT NULL,
    "amount" DECIMAL(14,4) NOT NULL,
    "on_reached" TEXT NOT NULL,
    "notify" INTEGER[],
    "updated_at" TIMESTAMPTZ(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "budgets_pkey" PRIMARY KEY ("namespace_id","owner")
);

-- CreateTable
CREATE TABLE "budget_notices" (
    "namespace_id" TEXT NOT NULL,
    "owner" TEXT NOT NULL,
    "month" DATE NOT NULL,
    "threshold" INTEGER NOT NULL,

    CONSTRAINT "budget_notices_pkey" PRIMARY KEY ("namespace_id","owner","month","threshold")
);

-- AddForeignKey
ALTER TABLE "budgets" ADD CONSTRAINT "budgets_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

-- AddForeignKey
ALTER TABLE "budget_notices" ADD CONSTRAINT "budget_notices_namespace_id_fkey" FOREIGN KEY ("namespace_id") REFERENCES "namespaces"("id") ON DELETE CASCADE ON UPDATE CASCADE;

ALTER TABLE budgets ADD CONSTRAINT budgets_owner CHECK (owner IN ('namespace', 'operator'));
ALTER TABLE budgets ADD CONSTRAINT budgets_on_reached CHECK (on_reached IN ('refuse', 'cancel'));
ALTER TABLE budgets ADD CONSTRAINT budgets_amount CHECK (amount > 0);

-- What the jobs of a namespace have cost in the current month in UTC: the ledger, and what runs now. An attempt that ends at the
-- same time is in exactly one of both, because the function is one statement. An attempt that started in an earlier month counts
-- from the start of this month. Rounded as src/jobs/usage-ledger.ts does.
CREATE FUNCTION month_cost(namespace text) RETURNS numeric LANGUAGE sql STABLE AS $$
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
CREATE FUNCTION refuse_jobs_over_budget() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (
    SELECT FROM budgets WHERE namespace_id IN (SELECT namespace_id FROM new_jobs) AND month_cost(namespace_id) >= amount
  ) THEN
    RAISE EXCEPTION 'jobs_within_budget' USING errcode = 'check_violation', constraint = 'jobs_within_budget';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER jobs_within_budget AFTER INSERT ON jobs REFERENCING NEW TABLE AS new_jobs
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_jobs_over_budget();
