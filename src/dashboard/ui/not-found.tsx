import { redirectToSignIn } from '../graphql/client.ts';
import { startData } from '../start.ts';
import { Button, ButtonLink } from './button.tsx';
import { Empty } from './empty.tsx';

type Props = {
  what?: string;
  /** Shown inside a page that has its own title and heading. */
  isPart?: boolean;
};

/** Missing and forbidden objects look the same, as in the API. */
export function NotFound({ what = 'page', isPart = false }: Props) {
  return (
    <>
      {!isPart && <title>Not found · Loam</title>}
      <Empty title={`${what[0]?.toUpperCase()}${what.slice(1)} not found`} level={isPart ? 2 : 1}>
        <p>
          {startData.viewer
            ? `It does not exist, or ${startData.viewer.username} has no access to it.`
            : 'It does not exist, or only users who are signed in can see it.'}
        </p>
        {startData.viewer ? (
          <ButtonLink to="/">Go home</ButtonLink>
        ) : (
          <Button look="primary" onClick={redirectToSignIn}>
            Sign in
          </Button>
        )}
      </Empty>
    </>
  );
}
