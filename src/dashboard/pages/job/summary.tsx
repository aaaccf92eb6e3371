import { lazy, type ReactNode, Suspense } from 'react';
import { graphql } from '../../graphql/graphql.ts';
import { LoadingSkeleton, useRetryingQuery } from '../../ui/load.tsx';
import { PreviewBoundary } from '../repository/preview-boundary.tsx';

const SummaryText = lazy(() => import('./summary-text.tsx'));

const SummaryQuery = graphql(`
  query JobSummary($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) { id summary }
  }
`);

/** The Markdown text that a job has written to `JOB_SUMMARY`. */
export function Summary({
  job: { namespace, name },
  title,
}: {
  job: { namespace: string; name: string };
  title: ReactNode;
}) {
  const { data } = useRetryingQuery({ query: SummaryQuery, variables: { namespace, name } });
  const text = data?.job?.summary;
  return (
    <section aria-label={`Summary of ${name}`} data-summary>
      {title}
      <div className="card p-4">
        {text == null ? (
          <LoadingSkeleton />
        ) : (
          <PreviewBoundary key={text} text={text}>
            <Suspense fallback={<LoadingSkeleton />}>
              <SummaryText job={{ namespace, name }} text={text} />
            </Suspense>
          </PreviewBoundary>
        )}
      </div>
    </section>
  );
}
