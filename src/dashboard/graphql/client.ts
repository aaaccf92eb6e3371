/** Asking the server: one client for the page. Answers are kept, shown at once when a page comes back, and asked for again. */
import {
  type AnyVariables,
  Client,
  type CombinedError,
  cacheExchange,
  fetchExchange,
  mapExchange,
} from 'urql';
import { start } from '../start.ts';

/** The code of an answer to who is not, or not any more, signed in. */
export const SIGNED_OUT = 'AUTHENTICATION_FAILED';

export const client = new Client({
  url: '/graphql',
  preferGetMethod: false,
  requestPolicy: 'cache-and-network',
  exchanges: [
    cacheExchange,
    mapExchange({
      onError(error) {
        if (start.viewer && codeOf(error) === SIGNED_OUT) signIn();
      },
    }),
    fetchExchange,
  ],
});

/** The session has ended: what was shown is not the viewer's any more. */
export function signIn(): void {
  location.assign(`/login?to=${encodeURIComponent(location.pathname + location.search)}`);
}

export function codeOf(error: CombinedError): string | undefined {
  const code = error.graphQLErrors[0]?.extensions?.code;
  return typeof code === 'string' ? code : undefined;
}

/** What a person is told of an error: the server's own words, and what to name when asking about it. */
export type Problem = { message: string; code?: string; field?: string; requestId?: string };

export function problemOf(error: CombinedError): Problem {
  const requestId =
    (error.response as Response | undefined)?.headers?.get('x-request-id') ?? undefined;
  const [first] = error.graphQLErrors;
  if (first) {
    const { code, field } = first.extensions as { code?: string; field?: string };
    return { message: first.message, code, field, requestId };
  }
  return {
    message: 'The server cannot be reached. What you see may be old.',
    code: 'OFFLINE',
    requestId,
  };
}

/** What a field's own message says: the API begins it with its name of the field, which the form does not show. */
export function faultOf({ message, field }: Problem): string {
  if (!field || !message.startsWith(`${field}: `)) return message;
  const text = message.slice(field.length + 2);
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export type { AnyVariables };
