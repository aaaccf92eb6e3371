import type { ErrorComponentProps } from '@tanstack/react-router';
import { Button } from '../ui/button.tsx';
import { Empty } from '../ui/empty.tsx';

/** A page that failed, or whose files are gone because the server was upgraded: loading it anew gets those of today. */
export function Crashed({ error }: ErrorComponentProps) {
  return (
    <Empty title="This page could not be shown" level={1}>
      <p className="break-words">{error instanceof Error ? error.message : String(error)}</p>
      <Button look="primary" onClick={() => location.reload()}>
        Load it again
      </Button>
    </Empty>
  );
}
