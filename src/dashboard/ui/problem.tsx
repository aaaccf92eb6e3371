import { CircleAlert } from 'lucide-react';
import type { CombinedError } from 'urql';
import { type Problem, toProblem } from '../graphql/client.ts';
import { Button } from './button.tsx';

/** The server's error message, with the request id to look up in its log. */
export function ProblemBox({ problem, onRetry }: { problem: Problem; onRetry?: () => void }) {
  return (
    <div
      role="alert"
      className="flex gap-3 rounded-md border border-bad bg-bad-soft p-3 text-sm text-ink"
    >
      <CircleAlert size={18} className="mt-0.5 shrink-0 text-bad" aria-hidden />
      <div className="min-w-0 flex-1">
        <p className="break-words">{problem.message}</p>
        {problem.requestId && (
          <p className="mt-1 text-dim">
            Request id: <code className="break-all">{problem.requestId}</code>
          </p>
        )}
      </div>
      {onRetry && (
        <Button onClick={onRetry} className="self-start">
          Try again
        </Button>
      )}
    </div>
  );
}

export function ErrorBox({ error, onRetry }: { error: CombinedError; onRetry?: () => void }) {
  return <ProblemBox problem={toProblem(error)} onRetry={onRetry} />;
}
