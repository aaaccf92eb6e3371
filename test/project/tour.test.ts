/** The tour of the README. */
import { test } from 'vitest';
import { startApp } from '../support/harness.ts';
import { needs } from '../support/needs.ts';
import { LINES, STREAM, TIMEOUT_MS, takeTour } from '../support/tour.ts';

const FINISHED = `until api $LOAM/admin/job/count | grep -q '"status":"succeeded"'; do sleep 0.2; done`;

test.for([
  ['all lines at once', LINES],
  ['slowly, after the job has finished', LINES.replace(STREAM, (line) => `${FINISHED}\n${line}`)],
])(
  'the tour of the README works as printed, %s',
  { timeout: 2 * TIMEOUT_MS },
  async ([, lines = ''], ctx) => {
    needs(ctx, 'curl');
    await using app = await startApp({ config: { runner: 'process' } });
    // The first start suggests creating this repository, so the tour must work with it.
    await app.admin.post('/auth/v1/repository/admin', { name: 'hello' });
    await takeTour(app, lines);
  },
);
