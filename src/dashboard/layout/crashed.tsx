import type { ErrorComponentProps } from '@tanstack/react-router';
import { useEffect } from 'react';
import { Button } from '../ui/button.tsx';
import { Empty } from '../ui/empty.tsx';

const RETRY_MS = 2_000;

/** Shown when a page threw an error, or when its files are gone after an upgrade: a reload fetches the current files. */
export function Crashed({ error }: ErrorComponentProps) {
  if (error instanceof ServerUnreachable) return <ServerUnreachablePage />;
  return (
    <Empty title="This page could not be shown" level={1}>
      <p className="break-words">{error instanceof Error ? error.message : String(error)}</p>
      <Button look="primary" onClick={() => location.reload()}>
        Reload
      </Button>
    </Empty>
  );
}

/** Reloads the document: browsers do not retry a module script that failed to load. */
function ServerUnreachablePage() {
  useEffect(() => {
    let timer = setTimeout(async function retry() {
      if (await isServerReady()) location.reload();
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

/** The server cannot be reached, or is starting. */
export class ServerUnreachable extends Error {
  constructor() {
    super('The server cannot be reached.');
  }
}

export async function isServerReady(): Promise<boolean> {
  try {
    const { status } = await fetch('/readyz', { cache: 'no-store' });
    return status < 500;
  } catch {
    return false;
  }
}
