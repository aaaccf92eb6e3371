/**
 * Labels of jobs. The rules are those of Kubernetes, so that users can use the same labels there. A key is a name, optionally
 * after a DNS name and a slash (`example.com/team`). A value is a name, or empty.
 */
import { invalid } from '../../base/errors.ts';

export type Label = { key: string; value: string };

/** Retention deletes neither a job with this label nor its files, whatever the value. */
export const KEEP_LABEL = 'keep';

/** Maximum number of labels of a job. */
export const MAX_LABELS = 32;
/** Maximum length of the DNS name before the slash, in characters. */
const MAX_PREFIX_LENGTH = 253;

/** Matches a name. */
export const LABEL_NAME_PATTERN = /^[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$/;
const DNS_NAME = /^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*$/;

/** Returns the labels, sorted by key. @throws AppError 400 naming `labels` */
export function checkLabels(labels: readonly Label[]): Label[] {
  if (labels.length > MAX_LABELS)
    throw invalid('labels', `must not have more than ${MAX_LABELS} entries`);
  const byKey = new Map<string, Label>();
  for (const { key, value } of labels) {
    checkLabelKey('labels', key);
    checkLabelValue('labels', value);
    if (byKey.has(key)) throw invalid('labels', `${key} is given more than once`);
    byKey.set(key, { key, value });
  }
  return [...byKey.values()].sort((a, b) => (a.key < b.key ? -1 : 1));
}

/** @throws AppError 400 naming `field` */
export function checkLabelKey(field: string, key: string): void {
  const slash = key.lastIndexOf('/');
  const prefix = key.slice(0, Math.max(0, slash));
  const isPrefixed = slash === -1 || (prefix.length <= MAX_PREFIX_LENGTH && DNS_NAME.test(prefix));
  if (isPrefixed && LABEL_NAME_PATTERN.test(key.slice(slash + 1))) return;
  throw invalid(
    field,
    'keys must be 1 to 63 letters, digits, -, _ and ., starting and ending with a letter or digit, after an optional DNS name and slash',
  );
}

/** @throws AppError 400 naming `field` */
export function checkLabelValue(field: string, value: string): void {
  if (value === '' || LABEL_NAME_PATTERN.test(value)) return;
  throw invalid(
    field,
    'values must be up to 63 letters, digits, -, _ and ., starting and ending with a letter or digit',
  );
}
