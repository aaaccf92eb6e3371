/** Errors of the server in the words of the command: the API names fields, the command has options. */
import { UsageError } from './exit.ts';
import { LoamError } from './sdk/errors.ts';

/**
 * Sends requests whose errors name fields of the API, and throws errors that name the options of the command instead.
 * @param flags the option of each field
 * @throws UsageError for a value that the server refuses, LoamError otherwise
 */
export async function namingFlags<T>(
  flags: Readonly<Record<string, string>>,
  send: () => Promise<T>,
): Promise<T> {
  try {
    return await send();
  } catch (error) {
    if (!(error instanceof LoamError)) throw error;
    const { code, field = '' } = error;
    const flag = flags[field];
    const prefixed =
      flag && error.message.startsWith(`${field}: `)
        ? flag + error.message.slice(field.length)
        : error.message;
    // Words with a capital inside are names of fields.
    const message = prefixed.replaceAll(/\b[a-z]+[A-Z]\w*/g, (word) => flags[word] ?? word);
    throw flag && code === 'invalid_request'
      ? new UsageError(message)
      : new LoamError(code, message, { ...error, cause: error });
  }
}
