/** Renders the body of a message: `{id, type, timestamp, namespace, data}` as JSON. */

import type { Urls } from '../../base/urls.ts';
import { payloadToSend } from '../../jobs/requests/jobs.ts';
import type { Signer } from '../../platform/crypto/signed-links.ts';

/** A row of `webhook_messages`. `data` is the data of the event, or of a ping. */
export type StoredMessage = {
  id: string;
  type: string;
  namespace: string;
  timestamp: Date;
  data: unknown;
};

type Job = Parameters<typeof payloadToSend>[1];
type EventData =
  | { job: Job }
  | { repository: object; push?: object }
  | { budget: object }
  | { machine: object };

/** The body is the same for every attempt, except for the links to artifacts, which are signed each time. */
export function renderBody(
  services: { signer: Signer; urls: Urls },
  { id, type, timestamp, namespace, data }: StoredMessage,
): string {
  const at = timestamp.toISOString();
  return JSON.stringify({ id, type, timestamp: at, namespace, data: renderData(services, data) });
}

/** The job or repository as GET returned it at the time of the event, a budget, or a machine. A push is added to its repository. */
export function renderData(services: { signer: Signer; urls: Urls }, data: unknown): unknown {
  const event = data as EventData;
  if ('job' in event) return payloadToSend(services, event.job);
  if ('repository' in event)
    return { ...event.repository, ...(event.push && { push: event.push }) };
  if ('budget' in event) return event.budget;
  if ('machine' in event) return event.machine;
  return data;
}
