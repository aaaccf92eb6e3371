/** The audits of the package graphql-http, from the working group of the specification "GraphQL over HTTP". */
import { serverAudits } from 'graphql-http';
import { expect, test } from 'vitest';
import { startApp } from '../support/harness.ts';

test('the server passes all audits of "GraphQL over HTTP": must, should and may', async () => {
  await using app = await startApp();
  const audits = serverAudits({ url: `${app.base}/graphql` });
  const results = await Promise.all(audits.map((audit) => audit.fn()));
  const failed = results.flatMap((result) =>
    result.status === 'ok' ? [] : [`${result.status}: ${result.name}: ${result.reason}`],
  );
  expect(failed).toEqual([]);
  const of = (word: string) => results.filter(({ name }) => name.startsWith(word)).length;
  expect({ must: of('MUST'), should: of('SHOULD'), may: of('MAY') }).toEqual({
    must: 13,
    should: 23,
    may: 25,
  });
});
