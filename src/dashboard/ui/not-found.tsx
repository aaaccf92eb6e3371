import { signIn } from '../graphql/client.ts';
import { start } from '../start.ts';
import { Button, ButtonLink } from './button.tsx';
import { Empty } from './empty.tsx';

type Props = {
  what?: string;
  /** Of a page that has a title and a heading of its own. */
  isPart?: boolean;
};

/** What is not there and what one may not see look the same, as in the API. */
export function NotFound({ what = 'page', isPart = false }: Props) {
  return (
    <>
      {!isPart && <title>Not found · Loam</title>}
      <Empty title={`There is no such ${what}`} level={isPart ? 2 : 1}>
        <p>
          {start.viewer
            ? `Or it is one that ${start.viewer.username} may not see.`
            : 'Or it is one that you can see when you are signed in.'}
        </p>
        {start.viewer ? (
          <ButtonLink to="/">Go home</ButtonLink>
        ) : (
          <Button look="primary" onClick={signIn}>
            Sign in
          </Button>
        )}
      </Empty>
    </>
  );
}
