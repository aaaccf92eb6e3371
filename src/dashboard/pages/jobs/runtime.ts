import { useRef } from 'react';
import { useSecond } from '../../ui/time.tsx';

/**
 * How long the attempts of a job have run, as the API has it and bills it: without the time between attempts and that of
 * storing artifacts. Of a running job it goes on by the clock between two answers of the server.
 */
export function useRuntime(job: { status: string; runtimeSeconds: number }): number {
  const now = useSecond();
  const answer = useRef({ seconds: job.runtimeSeconds, at: now });
  if (answer.current.seconds !== job.runtimeSeconds)
    answer.current = { seconds: job.runtimeSeconds, at: now };
  const since = job.status === 'RUNNING' ? now - answer.current.at : 0;
  return job.runtimeSeconds + since;
}
