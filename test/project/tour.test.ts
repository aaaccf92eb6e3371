import { test } from 'vitest';
import { startApp } from '../support/harness.ts';
import { needs } from '../support/needs.ts';
import { LINES, STREAM, TIMEOUT_MS, takeTour } from '../support/tour.ts';

const FINISHED = `until api $LOAM/admin/job/count | grep -q '"status":"succeeded"'; do sleep 0.2; done`;

test.for([
  ['pasted at once', LINES],
  [
    'read slowly, when the job has long finished',
    LINES.replace(STREAM, (line) => `${FINISHED}\n${line}`),
  ],
])(
  "the README's tour works as it is printed, %s",
  { timeout: 2 * TIMEOUT_MS },
  async ([, lines = ''], ctx) => {
    needs(ctx, 'curl');
    await using app = await startApp({ config: { runner: 'process' } });
    // What the first start proposes to try has been tried.
    await app.admin.post('/auth/v1/repository/admin', { name: 'hello' });
    await takeTour(app, lines);
  },
);
