/** Graphs of 50 jobs against a model: failures, cancels, deletions and reruns, in groups of which one job runs at a time. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { startApp } from '../support/harness.ts';
import { cancel, job, remove, submit, until } from '../support/submit.ts';

const JOBS = 50;
const GRAPHS = 3;
type Status = 'SUCCEEDED' | 'FAILED' | 'CANCELLED';
type When = 'SUCCEEDED' | 'FAILED' | 'FINISHED';

/** What a job does, and which earlier jobs it needs. */
const node = fc.record({
  fails: fc.boolean(),
  needs: fc.array(
    fc.record({
      back: fc.integer({ min: 1, max: 8 }),
      when: fc.constantFrom<When>('SUCCEEDED', 'SUCCEEDED', 'FINISHED', 'FAILED'),
    }),
    { maxLength: 3 },
  ),
  group: fc.option(fc.constantFrom('a', 'b'), { freq: 2 }),
  /** What a user does to it before the first job has ended. */
  user: fc.constantFrom('nothing', 'nothing', 'nothing', 'nothing', 'nothing', 'cancel', 'delete'),
});
type Node = typeof node extends fc.Arbitrary<infer T> ? T : never;

function needsOf({ needs }: Node, index: number): Map<number, When> {
  return new Map(
    needs.flatMap(({ back, when }) => (index >= back ? [[index - back, when] as const] : [])),
  );
}

/** The table of expectations. */
function expectStatuses(nodes: readonly Node[]): Status[] {
  const statuses: Status[] = [];
  for (const [index, one] of nodes.entries()) {
    const isMet = [...needsOf(one, index)].every(
      ([needed, when]) => when === 'FINISHED' || statuses[needed] === when,
    );
    const runs = isMet && one.user === 'nothing';
    statuses.push(!runs ? 'CANCELLED' : one.fails ? 'FAILED' : 'SUCCEEDED');
  }
  return statuses;
}

test('every job ends as the model says, and no group runs two jobs at once', async () => {
  const runner = fakeRunner({ images: true });
  const groups = new Map<string, string>();
  const problems: string[] = [];
  const start: typeof runner.start = async (...args) => {
    const begun = await runner.start(...args);
    const running = runner.running().map(({ job: { name } }) => groups.get(name));
    for (const group of ['a', 'b'])
      if (running.filter((one) => one?.endsWith(group)).length > 1) problems.push(group);
    return begun;
  };
  await using app = await startApp({ overrides: { runner: { ...runner, start } } });
  const ada = await app.user('ada');
  let graphs = 0;
  await fc.assert(
    fc.asyncProperty(fc.array(node, { minLength: JOBS, maxLength: JOBS }), async (nodes) => {
      const prefix = `g${++graphs}`;
      const nameOf = (index: number) => `${prefix}-job${index}`;
      const create = (name: string, command: string, fields: object) =>
        submit(ada, { namespace: 'ada', image: 'debian:12', name, command, ...fields });
      const gate = `${prefix}-gate`;
      await create(gate, 'hold', {});
      for (const [index, one] of nodes.entries()) {
        const needs = Array.from(needsOf(one, index), ([needed, when]) => ({
          job: nameOf(needed),
          when,
        }));
        if (one.group) groups.set(nameOf(index), `${prefix} ${one.group}`);
        await create(nameOf(index), one.fails ? 'exit 1' : 'exit 0', {
          needs: [{ job: gate, when: 'FINISHED' }, ...needs],
          concurrency: one.group && { group: `${prefix} ${one.group}` },
        });
      }
      for (const [index, { user }] of nodes.entries())
        if (user !== 'nothing') {
          await cancel(ada, 'ada', nameOf(index));
          if (user === 'delete') await remove(ada, 'ada', nameOf(index));
        }
      await until(ada, 'ada', gate, 'RUNNING');
      runner.release();

      const expected = expectStatuses(nodes);
      for (const [index, status] of expected.entries())
        if (nodes[index]?.user !== 'delete') await until(ada, 'ada', nameOf(index), status);
      const ran = runner.started.map(({ job: { name } }) => name);
      expect(ran.filter((name) => name.startsWith(`${prefix}-job`)).sort()).toEqual(
        nodes.flatMap((_, i) => (expected[i] === 'CANCELLED' ? [] : [nameOf(i)])).sort(),
      );
      expect(problems).toEqual([]);

      // A rerun runs, however the needed jobs ended.
      const again = nodes.findIndex(
        ({ user }, i) => user === 'nothing' && expected[i] !== 'SUCCEEDED',
      );
      if (again >= 0) {
        await ada.gql(
          `mutation { rerunJob(input: { namespace: "ada", name: "${nameOf(again)}" }) { job { id } } }`,
        );
        const status = nodes[again]?.fails ? 'FAILED' : 'SUCCEEDED';
        await until(ada, 'ada', `${nameOf(again)}-2`, status);
      }
      // Nothing is left over: no change, and no slot.
      await eventually(async () => {
        const { rows } = await app.pool.query(
          `select (select count(*) from job_changes)::int as changes, (select count(*) from job_slots)::int as slots`,
        );
        expect(rows).toEqual([{ changes: 0, slots: 0 }]);
      });
      expect((await job(ada, 'ada', gate)).status).toBe('SUCCEEDED');
    }),
    { numRuns: GRAPHS, endOnFailure: true },
  );
});
