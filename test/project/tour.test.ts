/** The tours of the README and of docs/rest.md. */
import { test } from 'vitest';
import { startApp } from '../support/harness.ts';
import { needs } from '../support/needs.ts';
import { REST_LINES, STREAM, takeRestTour, takeTour } from '../support/tour.ts';

const FINISHED = `until api $LOAM/admin/job/count | grep -q '"status":"succeeded"'; do sleep 0.2; done`;
const SLOWLY = REST_LINES.replace(STREAM, (line) => `${FINISHED}\n${line}`);

test.for([
  ['the tour of the README', takeTour],
  ['the tour with curl', takeRestTour],
  [
    'the tour with curl, slowly',
    (loam: Parameters<typeof takeRestTour>[0]) => takeRestTour(loam, SLOWLY),
  ],
] as const)('%s works as printed', async ([, take], ctx) => {
  needs(ctx, 'curl');
  await using app = await startApp({ config: { runner: 'process' } });
  // The first start suggests creating this repository, so the tours must work with it.
  await app.admin.post('/auth/v1/repository/admin', { name: 'hello' });
  await take(app);
});
