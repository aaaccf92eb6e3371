/** The job files in docs/: all are valid, and those for people who come from other systems run. */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readJobFile as readFile } from '../../src/automation/file.ts';
import { CONTRACT } from '../../src/base/hardware.ts';
import { eventually } from '../support/eventually.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LOAM, LoamUser } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';
import { lines } from '../support/submit.ts';

const readJobFile = (text: string) => readFile(text, CONTRACT);

const DOCS = join(import.meta.dirname, '../../docs');

type Example = { page: string; text: string };

/** Blocks with jobs. The files of other systems begin with their own path. */
const examples: Example[] = globSync('*.md', { cwd: DOCS }).flatMap((page) =>
  [...readFileSync(join(DOCS, page), 'utf8').matchAll(/^```yaml\n(.*?)^```$/gms)]
    .map(([, text = '']) => ({ page, text }))
    .filter(({ text }) => /^jobs:/m.test(text) && !/^# \.(?!loam\/jobs\.yml)/.test(text)),
);

const example = (page: string, job: string): string => {
  const found = examples.filter((one) => one.page === page && one.text.includes(`  ${job}:\n`));
  expect(found).toHaveLength(1);
  return found[0]?.text ?? '';
};

test('every job file of the documentation is valid', () => {
  expect(examples.filter(({ page }) => page === 'migration.md')).toHaveLength(5);
  expect(examples.filter(({ page }) => page === 'automation.md').length).toBeGreaterThan(1);
  for (const { page, text } of examples)
    expect([page, text, readJobFile(text).problems]).toEqual([page, text, []]);
});

let app: TestApp;
let ada: Client;
let workspace: Workspace;

beforeAll(async () => {
  app = await startApp({ config: { runner: 'process' } });
  ada = await app.user('ada');
  workspace = await Workspace.open();
});
afterAll(async () => {
  await workspace?.[Symbol.asyncDispose]();
  await app?.[Symbol.asyncDispose]();
});

/** Pushes a repository with these files, and starts what starts by hand. */
async function start(name: string, jobs: string, files: Record<string, string>): Promise<void> {
  const { body } = await ada.post('/auth/v1/repository/ada', { name, auto_init: false });
  await workspace.clone(ada, `ada/${name}`);
  await workspace.commit(name, { ...files, '.loam/jobs.yml': jobs });
  const scripts = Object.keys(files).filter((path) => path.endsWith('.sh'));
  if (scripts.length > 0) {
    await workspace.git(name, 'update-index', '--chmod=+x', ...scripts);
    await workspace.git(name, 'commit', '-q', '--amend', '--no-edit');
  }
  await workspace.git(name, 'push', '-q', 'origin', 'HEAD');
  if (jobs.includes('manual: true'))
    await ada.gql('mutation ($id: ID!) { startRun(input: { id: $id }) { run { id } } }', {
      id: body.id,
    });
}

const RUN = `query ($name: String!) { repository(namespace: "ada", name: $name) {
  run(number: 1) { status jobs { name status progress exitCode artifacts { fileCount } } } } }`;

// biome-ignore lint/suspicious/noExplicitAny: read field by field.
async function ended(name: string): Promise<any> {
  return eventually(async () => {
    const { repository } = await ada.gql(RUN, { name });
    expect(repository.run?.status, JSON.stringify(repository.run)).toMatch(/^(SUCCEEDED|FAILED)$/);
    return repository.run;
  });
}

test('required jobs: main takes a commit when it has been tested on another branch', async () => {
  const page = readFileSync(join(DOCS, 'automation.md'), 'utf8');
  const [, section = ''] = /^## Required jobs\n(.*?)^## /ms.exec(page) ?? [];
  const [protect, publish, ...more] = [...section.matchAll(/^```sh\n(.*?)^```$/gms)].map(
    ([, block]) => block,
  );
  expect([publish, more]).toEqual([expect.stringContaining('runs wait'), []]);
  const [, file = ''] = /^```yaml\n(.*?)^```$/ms.exec(section) ?? [];
  await start('model', file, { 'test.sh': '#!/bin/sh\necho tested\n' });

  await using user = await LoamUser.open(ada);
  const script = `loam() { '${process.execPath}' '${LOAM}' "$@"; }
    loam repo clone model && cd model
    ${protect}
    git commit -q --allow-empty -m 'My change'
    if git push origin HEAD:main; then exit 1; fi
    ${publish}
    test "$(git rev-parse HEAD)" = "$(git ls-remote origin main | cut -f1)"`;
  await user.exec('bash', ['-eu', '-o', 'pipefail', '-c', script]);
});

test('from GitHub Actions: a file takes the place of an output, and a job always runs', async () => {
  await start('actions', example('migration.md', 'report'), {
    VERSION: '1.4\n',
    'build.sh': '#!/bin/sh\nmkdir dist && echo app > dist/app\n',
    'test.sh': '#!/bin/sh\necho "$1 $2 $(cat dist/app)"; test "$1" = unit\n',
    'report.sh': '#!/bin/sh\necho reported\n',
  });
  const run = await ended('actions');
  expect(run.status).toBe('FAILED');
  const printed = await Promise.all(
    run.jobs.map(({ name }: { name: string }) => lines(ada, 'ada', name)),
  );
  expect(printed.flat()).toEqual(['unit 1.4 app', 'api 1.4 app', 'reported']);
});

test('a service runs beside the tests, and ends with the job', async (ctx) => {
  needs(ctx, 'python3');
  await start('service', example('migration.md', 'integration'), {
    'integration.sh':
      '#!/bin/sh\npython3 -c "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).status)" "$1"\n',
  });
  expect((await ended('service')).status).toBe('SUCCEEDED');
  expect(await lines(ada, 'ada', 'integration-1')).toContain('200');
});

test('from Slurm: a program gets a signal before its time is up, and leaves its state', async (ctx) => {
  needs(ctx, 'python3');
  // On a busy machine the signal may come before Python has a handler for it: then the job is retried.
  const jobs = example('migration.md', 'train')
    .replace(' 55m ', ' 2s ')
    .replace('timeout_minutes: 60', 'retries: 5');
  await start('slurm', jobs, {
    'train.py': `import signal, sys, time
def save(*_):
    open('out/checkpoint', 'w').write(sys.argv[2])
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
while True: time.sleep(0.1)
`,
  });
  const run = await ended('slurm');
  expect(run.status).toBe('SUCCEEDED');
  expect(run.jobs).toHaveLength(4);
  for (const { artifacts } of run.jobs) expect(artifacts.fileCount).toBe(1);
});

test('from AWS Batch: the command decides which exit codes are retried', async (ctx) => {
  needs(ctx, 'python3');
  // The process runner has no images.
  const jobs = example('migration.md', 'simulate').replace(/^ *image: .*\n/m, '');
  await start('batch', jobs, { 'simulate.py': 'import sys; sys.exit(2)\n' });
  const run = await ended('batch');
  expect(run.jobs).toMatchObject([{ status: 'SUCCEEDED', artifacts: { fileCount: 1 } }]);
});

test('sweeps: twelve combinations run, and main refuses a model that is worse', async (ctx) => {
  needs(ctx, 'python3');
  const page = readFileSync(join(DOCS, 'sweeps.md'), 'utf8');
  const blocks = (language: string) =>
    [...page.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\`$`, 'gms'))].map(
      ([, block = '']) => block,
    );
  const [create, train, protect, best, worse, ...more] = blocks('sh');
  expect([worse, more]).toEqual([expect.stringContaining('did not take'), []]);
  await using user = await LoamUser.open(ada);
  const script = `loam() { '${process.execPath}' '${LOAM}' "$@"; }
    ${create}
    cat > train.py <<'END'\n${blocks('python')[0]}END
    cat > .loam/jobs.yml <<'END'\n${blocks('yaml')[0]}END
    ${train}${protect}${best}
    # A reader is slower than the server, which creates the run of a push afterwards.
    until loam runs wait 4; do sleep 0.1; done
    exec 2>&1
    set +e
    ${worse}`;
  const stdout = await user.exec('bash', ['-eu', '-o', 'pipefail', '-c', script]);
  expect(stdout).toMatch(
    /^ada\/train-5 failed: accuracy is 0\.872, and at least 0\.91476 \(1% below the 0\.924 of train-4, /m,
  );
  expect(stdout).toContain('main did not take it');
  const query = `{ repository(namespace: "ada", name: "circle") {
    sweep: run(number: 2) { status jobs { metrics(names: ["loss"]) { last } } }
    first: run(number: 1) { jobs { checks { message } } }
    refused: run(number: 5) { sha } } }`;
  const { sweep, first, refused } = (await ada.gql(query)).repository;
  expect([sweep.status, sweep.jobs.length]).toEqual(['SUCCEEDED', 12]);
  const losses = sweep.jobs.map(({ metrics: [{ last }] }: { metrics: [{ last: number }] }) => last);
  expect(Math.min(...losses)).toBe(0.289);
  expect(first.jobs[0].checks[0].message).toBe(
    'accuracy is 0.926: at least 0.85, nothing to compare with: train has not succeeded on the default branch with this metric yet',
  );
  const statuses = await ada.gql(
    'query ($sha: String!) { repository(namespace: "ada", name: "circle") { commit(revision: $sha) { status { statuses { context state description } } } } }',
    { sha: refused.sha },
  );
  expect(statuses.repository.commit.status.statuses).toEqual([
    {
      context: 'train',
      state: 'FAILURE',
      description: expect.stringMatching(/^Failed: accuracy is 0\.872, and at least 0\.91476/),
    },
  ]);
});
