import { graphql } from '../../graphql/graphql.ts';
import { count } from '../../ui/format.ts';
import { useAsk } from '../../ui/load.tsx';
import { longDay } from '../../ui/time.tsx';

const ActivityQuery = graphql(`
  query CommitActivity($namespace: String!, $name: String!, $ref: String) {
    repository(namespace: $namespace, name: $name) {
      id
      commitActivity(ref: $ref) { start commits }
    }
  }
`);

const BAR = 5;
const HEIGHT = 48;

/** Commits of the last year, a bar a week. */
export function ActivityChart({
  namespace,
  name,
  revision,
}: {
  namespace: string;
  name: string;
  revision: string;
}) {
  const asked = useAsk({ query: ActivityQuery, variables: { namespace, name, ref: revision } });
  const weeks = asked.data?.repository?.commitActivity;
  if (!weeks) return null;
  const total = weeks.reduce((sum, { commits }) => sum + commits, 0);
  const most = Math.max(...weeks.map(({ commits }) => commits), 1);
  const said = `${count(total, 'commit')} in the last year`;
  return (
    <section aria-labelledby="activity">
      <h2 id="activity" className="mb-2 text-base">
        Activity
      </h2>
      <svg
        role="img"
        aria-label={`${said}, at most ${most} in a week`}
        viewBox={`0 0 ${weeks.length * BAR} ${HEIGHT}`}
        className="w-full"
      >
        {weeks.map(({ start, commits }, week) => {
          // A week without commits is a line on the ground; one with a single commit is told from it.
          const height = commits === 0 ? 1 : Math.max((commits / most) * HEIGHT, 3);
          return (
            <rect
              key={start}
              x={week * BAR}
              y={HEIGHT - height}
              width={BAR - 1}
              height={height}
              className={commits === 0 ? 'fill-line' : 'fill-accent'}
            >
              <title>{`${count(commits, 'commit')} in the week of ${longDay(start)}`}</title>
            </rect>
          );
        })}
      </svg>
      <p className="mt-1 text-sm text-dim">{said}</p>
    </section>
  );
}
