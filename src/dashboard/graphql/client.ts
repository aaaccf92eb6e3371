/** The GraphQL client of the dashboard. A page shows cached results at once and reads them again in the background. */
import { Client, type CombinedError, cacheExchange, fetchExchange, mapExchange } from 'urql';
import { startData } from '../start.ts';

/** The error code for requests without a valid session. */
export const SIGNED_OUT = 'AUTHENTICATION_FAILED';

export const client = new Client({
  url: '/graphql',
  preferGetMethod: false,
  requestPolicy: 'cache-and-network',
  exchanges: [
    cacheExchange,
    mapExchange({
      onError(error) {
        if (startData.viewer && errorCode(error) === SIGNED_OUT) redirectToSignIn();
      },
    }),
    fetchExchange,
  ],
});

/** Leaves the page for the sign-in form, which also removes data of the ended session from the screen. */
export function redirectToSignIn(): void {
  location.assign(`/login?to=${encodeURIComponent(location.pathname + location.search)}`);
}

export function errorCode(error: CombinedError): string | undefined {
  const code = error.graphQLErrors[0]?.extensions?.code;
  return typeof code === 'string' ? code : undefined;
}

/** An error as shown to people: the server's message, and the request id to quote in a support request. */
export type Problem = { message: string; code?: string; field?: string; requestId?: string };

export function toProblem(error: CombinedError): Problem {
  const requestId =
    (error.response as Response | undefined)?.headers?.get('x-request-id') ?? undefined;
  const [first] = error.graphQLErrors;
  if (first) {
    const { code, field } = first.extensions as { code?: string; field?: string };
    return { message: first.message, code, field, requestId };
  }
  return {
    message: 'The server cannot be reached. The data shown may be out of date.',
    code: 'OFFLINE',
    requestId,
  };
}

/** The message without the leading API field name, which the form does not show. */
export function fieldMessage({ message, field }: Problem): string {
  if (!field || !message.startsWith(`${field}: `)) return message;
  const text = message.slice(field.length + 2);
  return text.charAt(0).toUpperCase() + text.slice(1);
}
