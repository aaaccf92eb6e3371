/**
 * The ids of what secret scanning finds. The same secret has the same id in the same repository, so that nothing need be
 * kept of a push that was refused. Under a key of the server, because a password could be guessed from a plain hash of it.
 */
import { createHmac } from 'node:crypto';

export type FindingIds = (repositoryId: string, kind: string, text: string) => string;

/** Ten of 50 bits: enough to tell the findings of a repository apart, and few to type. */
const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
const CHARACTERS = 10;

export function createFindingIds(key: Uint8Array): FindingIds {
  return (repositoryId, kind, text) => {
    const mac = createHmac('sha256', key).update(JSON.stringify([repositoryId, kind, text]));
    return [...mac.digest().subarray(0, CHARACTERS)].map((byte) => ALPHABET[byte & 31]).join('');
  };
}
