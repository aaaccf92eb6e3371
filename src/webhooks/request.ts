/** Validates the fields of a webhook that a client sends. */
import { invalid } from '../base/errors.ts';
import { PING, WEBHOOK_EVENT_TYPES, type WebhookEventType } from './event-types.ts';

export type CreateInput = {
  name: string;
  url: string;
  secret?: string | null;
  eventTypes: readonly string[];
  /** Names of namespaces. */
  namespaces: readonly string[];
};

/** Omitted fields stay unchanged. */
export type UpdateInput = {
  name?: string | null;
  url?: string | null;
  /** Null removes the secret. */
  secret?: string | null;
  eventTypes?: readonly string[] | null;
  /** Names of namespaces. */
  namespaces?: readonly string[] | null;
  active?: boolean | null;
};

/** Characters. */
const MAX_NAME = 100;
const MAX_SECRET = 256;
/** Each namespace costs a query for its quota and a row. */
const MAX_NAMESPACES = 100;

/** Unique names in lower case, in the given order. */
type NonEmptyNames = [string, ...string[]];

/** @returns the valid values. The address of `url` is checked later, by `delivery/guard.ts`. @throws AppError 400 */
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
  namespaces?: NonEmptyNames;
  active?: boolean;
};

/** `checkCreation` for the fields that are present. @throws AppError 400 */
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

/** Letters of any language are allowed, because the name is only shown to people. */
function checkName(name: string): void {
  const length = [...name].length;
  if (length < 1 || length > MAX_NAME || name.trim() === '' || /[\p{Cc}\p{Cs}]/u.test(name))
    throw invalid('name', `must be 1 to ${MAX_NAME} characters, without control characters`);
}

/** Checked before the URL is parsed: the parser silently drops white space at the ends and line ends anywhere. */
function checkUrl(url: string): void {
  if (/[\s\p{C}]/u.test(url)) throw invalid('url', 'must not contain white space');
}

/** Only printable ASCII, because receivers keep the secret in environment variables and one-line files. */
function checkSecret(secret: string): void {
  if (secret.length > MAX_SECRET || !/^[\x20-\x7e]+$/.test(secret))
    throw invalid('secret', `must be 1 to ${MAX_SECRET} printable ASCII characters`);
  // Standard Webhooks libraries sign with the decoded bytes, and treat invalid base64 differently.
  if (/^whsec_/.test(secret) && !isBase64(secret.slice('whsec_'.length)))
    throw invalid('secret', 'must have base64 after whsec_');
}

/** Whether the text is canonical base64, which every decoder accepts: padded, and without unused bits. */
function isBase64(text: string): boolean {
  return text !== '' && Buffer.from(text, 'base64').toString('base64') === text;
}

function checkTypes(types: readonly string[]): WebhookEventType[] {
  if (types.length === 0) throw invalid('eventTypes', 'must contain at least one event type');
  return [...new Set(types)].map((type) => {
    const known = WEBHOOK_EVENT_TYPES.find((knownType) => knownType === type);
    if (known) return known;
    throw invalid(
      'eventTypes',
      type === PING
        ? 'ping cannot be chosen: only a test sends it'
        : 'must contain only known event types',
    );
  });
}

function checkNamespaces(names: readonly string[]): NonEmptyNames {
  const [first, ...others] = new Set(names.map((name) => name.toLowerCase()));
  if (first === undefined) throw invalid('namespaces', 'must contain at least one name');
  if (others.length >= MAX_NAMESPACES)
    throw invalid('namespaces', `must contain at most ${MAX_NAMESPACES} names`);
  return [first, ...others];
}
