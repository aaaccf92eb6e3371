import type { ErrorComponentProps } from '@tanstack/react-router';
import { useEffect } from 'react';
import { ServerAway, serverAnswers } from '../server-away.ts';
import { Button } from '../ui/button.tsx';
import { Empty } from '../ui/empty.tsx';

const RETRY_MS = 2_000;

/** A page that failed, or whose files are gone because the server was upgraded: loading it anew gets those of today. */
export function Crashed({ error }: ErrorComponentProps) {
  if (error instanceof ServerAway) return <Away />;
  return (
    <Empty title="This page could not be shown" level={1}>
      <p className="break-words">{error instanceof Error ? error.message : String(error)}</p>
      <Button look="primary" onClick={() => location.reload()}>
        Load it again
      </Button>
    </Empty>
  );
}

/** The address is that of the page already, and a browser does not fetch a script twice that it failed to get. */
function Away() {
  useEffect(() => {
    let timer = setTimeout(async function retry() {
      if (await serverAnswers()) location.reload();
      else timer = setTimeout(retry, RETRY_MS);
    }, RETRY_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <Empty title="The server cannot be reached" level={1}>
      <p role="status">This page opens by itself as soon as the server answers.</p>
    </Empty>
  );
}
