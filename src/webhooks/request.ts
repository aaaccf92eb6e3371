/** What a client may ask of a webhook (spec section 4.5, decisions section 5). */
import { invalid } from '../base/errors.ts';
import { PING, WEBHOOK_EVENT_TYPES, type WebhookEventType } from './event-types.ts';

export type CreateInput = {
  name: string;
  url: string;
  secret?: string | null;
  eventTypes: readonly string[];
  /** Names. */
  namespaces: readonly string[];
};

/** What is left out stays as it is. */
export type UpdateInput = {
  name?: string | null;
  url?: string | null;
  /** Here null is a value: it removes the secret. */
  secret?: string | null;
  eventTypes?: readonly string[] | null;
  /** Names. */
  namespaces?: readonly string[] | null;
  active?: boolean | null;
};

/** Characters. */
const MAX_NAME = 100;
const MAX_SECRET = 256;
/** Each takes a count of its webhooks and a row. */
const MAX_NAMESPACES = 100;

/** Names in lower case, each once, in the order given. */
type Names = [string, ...string[]];

/** The values, if they are allowed. What the `url` leads to is not looked at (`delivery/guard.ts`). @throws AppError 400 */
export function checkCreation({ name, url, secret, eventTypes, namespaces }: CreateInput) {
  checkName(name);
  checkUrl(url);
  if (secret != null) checkSecret(secret);
  return {
    name,
    url,
    secret: secret ?? null,
    eventTypes: checkTypes(eventTypes),
    namespaces: checkNamespaces(namespaces),
  };
}

export type Changes = {
  name?: string;
  url?: string;
  secret?: string | null;
  eventTypes?: WebhookEventType[];
  namespaces?: Names;
  active?: boolean;
};

/** As `checkCreation`, of what is there. @throws AppError 400 */
export function checkChanges(input: UpdateInput): Changes {
  const { name, url, secret, eventTypes, namespaces, active } = input;
  if (name != null) checkName(name);
  if (url != null) checkUrl(url);
  if (secret != null) checkSecret(secret);
  return {
    ...(name != null && { name }),
    ...(url != null && { url }),
    ...(secret !== undefined && { secret }),
    ...(eventTypes != null && { eventTypes: checkTypes(eventTypes) }),
    ...(namespaces != null && { namespaces: checkNamespaces(namespaces) }),
    ...(active != null && { active }),
  };
}

/** Of any script; it is shown to people and stands nowhere else. */
function checkName(name: string): void {
  const length = [...name].length;
  if (length < 1 || length > MAX_NAME || name.trim() === '' || /[\p{Cc}\p{Cs}]/u.test(name))
    throw invalid('name', `must be 1 to ${MAX_NAME} characters, and no control characters`);
}

/** All but this is the guard's. The URL standard takes white space at the ends, and line ends anywhere, in silence. */
function checkUrl(url: string): void {
  if (/[\s\p{C}]/u.test(url)) throw invalid('url', 'must not contain white space');
}

/** It stands in no header, but receivers keep it in environments and files of one line. */
function checkSecret(secret: string): void {
  if (secret.length > MAX_SECRET || !/^[\x20-\x7e]+$/.test(secret))
    throw invalid('secret', `must be 1 to ${MAX_SECRET} printable ASCII characters`);
  // Libraries of Standard Webhooks sign with the bytes that this stands for, and disagree about anything else.
  if (/^whsec_/.test(secret) && !isBase64(secret.slice('whsec_'.length)))
    throw invalid('secret', 'must have base64 after whsec_');
}

/** In the one form that every decoder takes: padded, and without bits that stand for nothing. */
function isBase64(text: string): boolean {
  return text !== '' && Buffer.from(text, 'base64').toString('base64') === text;
}

function checkTypes(types: readonly string[]): WebhookEventType[] {
  if (types.length === 0) throw invalid('eventTypes', 'must name at least one');
  return [...new Set(types)].map((type) => {
    const known = WEBHOOK_EVENT_TYPES.find((each) => each === type);
    if (known) return known;
    throw invalid(
      'eventTypes',
      type === PING ? 'ping cannot be chosen: a test sends it' : 'each must be a known type',
    );
  });
}

function checkNamespaces(names: readonly string[]): Names {
  const [first, ...others] = new Set(names.map((name) => name.toLowerCase()));
  if (first === undefined) throw invalid('namespaces', 'must name at least one');
  if (others.length >= MAX_NAMESPACES)
    throw invalid('namespaces', `must be at most ${MAX_NAMESPACES}`);
  return [first, ...others];
}
