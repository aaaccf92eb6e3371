/** What is sent of a message: `{id, type, timestamp, namespace, data}` as JSON. */

import type { Urls } from '../../base/urls.ts';
import { payloadToSend } from '../../jobs/jobs.ts';
import type { Signer } from '../../platform/crypto/signed-links.ts';

/** As `webhook_messages` keeps it: `data` is what the event had (`payload.ts` of jobs and of repos), or a ping's own. */
export type StoredMessage = {
  id: string;
  type: string;
  namespace: string;
  timestamp: Date;
  data: unknown;
};

type Job = Parameters<typeof payloadToSend>[1];
type EventData = { job: Job } | { repository: object; push?: object };

/** The same for every attempt, but for the links to artifacts, which are signed for the time from now on. */
export function renderBody(
  services: { signer: Signer; urls: Urls },
  { id, type, timestamp, namespace, data }: StoredMessage,
): string {
  const at = timestamp.toISOString();
  return JSON.stringify({ id, type, timestamp: at, namespace, data: renderData(services, data) });
}

/** The job or the repository as GET returned it then, with a push beside the fields of its repository. */
export function renderData(services: { signer: Signer; urls: Urls }, data: unknown): unknown {
  const event = data as EventData;
  if ('job' in event) return payloadToSend(services, event.job);
  if ('repository' in event)
    return { ...event.repository, ...(event.push && { push: event.push }) };
  return data;
}
