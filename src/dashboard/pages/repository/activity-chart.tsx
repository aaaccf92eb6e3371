import { graphql } from '../../graphql/graphql.ts';
import { formatCount } from '../../ui/format.ts';
import { useRetryingQuery } from '../../ui/load.tsx';
import { formatLongDate } from '../../ui/time.tsx';

const ActivityQuery = graphql(`
  query CommitActivity($namespace: String!, $name: String!, $ref: String) {
    repository(namespace: $namespace, name: $name) {
      id
      commitActivity(ref: $ref) { start commits }
    }
  }
`);

const BAR_WIDTH = 5;
const CHART_HEIGHT = 48;

/** Commits of the last year, one bar per week. */
export function ActivityChart({
  namespace,
  name,
  revision,
}: {
  namespace: string;
  name: string;
  revision: string;
}) {
  const asked = useRetryingQuery({
    query: ActivityQuery,
    variables: { namespace, name, ref: revision },
  });
  const weeks = asked.data?.repository?.commitActivity;
  if (!weeks) return null;
  const total = weeks.reduce((sum, { commits }) => sum + commits, 0);
  const max = Math.max(...weeks.map(({ commits }) => commits), 1);
  const summary = `${formatCount(total, 'commit')} in the last year`;
  return (
    <section aria-labelledby="activity">
      <h2 id="activity" className="mb-2 text-base">
        Activity
      </h2>
      <svg
        role="img"
        aria-label={`${summary}, at most ${max} in a week`}
        viewBox={`0 0 ${weeks.length * BAR_WIDTH} ${CHART_HEIGHT}`}
        className="w-full"
      >
        {weeks.map(({ start, commits }, week) => {
          // Weeks without commits keep a thin baseline. The minimum of 3 keeps a single commit visible above it.
          const height = commits === 0 ? 1 : Math.max((commits / max) * CHART_HEIGHT, 3);
          return (
            <rect
              key={start}
              x={week * BAR_WIDTH}
              y={CHART_HEIGHT - height}
              width={BAR_WIDTH - 1}
              height={height}
              className={commits === 0 ? 'fill-line' : 'fill-accent'}
            >
              <title>{`${formatCount(commits, 'commit')} in the week of ${formatLongDate(start)}`}</title>
            </rect>
          );
        })}
      </svg>
      <p className="mt-1 text-sm text-dim">{summary}</p>
    </section>
  );
}
