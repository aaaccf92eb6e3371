/** The lines for a terminal that the dashboard shows: a real shell and the real command do what the form would do. */
import { spawn } from 'node:child_process';
import { buffer } from 'node:stream/consumers';
import fc from 'fast-check';
import { print } from 'graphql';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  type Draft,
  draftFromJob,
  newDraft,
  toCreateInput,
} from '../../src/dashboard/pages/job/new/draft.ts';
import {
  type JobOptions,
  NewJobQuery,
  RerunQuery,
} from '../../src/dashboard/pages/job/new/queries.ts';
import { formatJobCurl, formatLoamRun } from '../../src/dashboard/pages/job/new/request.ts';
import {
  formatRepoCreate,
  formatRepositoryCurl,
  type NewRepository,
} from '../../src/dashboard/pages/repository/request.ts';
import { formatCurl, quoteForShell } from '../../src/dashboard/ui/shell.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LOAM, LoamUser } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';
import { submit } from '../support/submit.ts';
import { type TestVolumes, testVolumes } from '../support/volumes.ts';

let app: TestApp;
let ada: Client;
let user: LoamUser;
let options: JobOptions;
let volumes: TestVolumes;

const SNAPSHOT = '0123456789abcdef'.repeat(2);
const HOSTILE_BRANCH = `it's;$(touch\${IFS}pwned)&"@v2`;

beforeAll(async () => {
  volumes = await testVolumes();
  app = await startApp({ config: { volumes: volumes.declared } });
  ada = await app.user('ada');
  user = await LoamUser.open(ada);
  await ada.post('/auth/v1/repository/ada', { name: 'code', auto_init: true });
  await user.exec('git', ['clone', '-q', `${app.base}/ada/code.git`]);
  await user.exec('git', [
    '-C',
    'code',
    'push',
    '-q',
    'origin',
    `HEAD:refs/heads/${HOSTILE_BRANCH}`,
    `HEAD:refs/loam/snapshots/${SNAPSHOT}`,
  ]);
  const source = { namespace: 'ada', name: 'source', repo: 'ada/code', outputPath: 'out' };
  await submit(ada, { ...source, name: 'earlier', command: 'true' });
  await submit(ada, { ...source, command: 'echo x > out/x' });
  for (const name of ['ANY', 'OTHER'])
    await ada.gql('mutation ($i: SetSecretInput!) { setSecret(input: $i) { secret { name } } }', {
      i: { namespace: 'ada', name, value: 'x', refs: ['**'] },
    });
  await ada.gql(
    'mutation { setVariable(input: { namespace: "ada", name: "REGION", value: "eu" }) { variable { name } } }',
  );
  const { jobOptions } = await ada.gql(print(NewJobQuery), { namespace: 'ada' });
  options = jobOptions;
});
afterAll(async () => {
  await user[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
  await volumes[Symbol.asyncDispose]();
});

/** Runs a line in the home of Ada, with `loam` and `$LOAM_TOKEN`; `loam run` does not follow the job. */
function runLine(line: string, { shell = 'bash', more = '' } = {}) {
  const script = `
    loam() {
      [ "$1" = run ] || { '${process.execPath}' '${LOAM}' "$@"; return; }
      shift; '${process.execPath}' '${LOAM}' run --detach "$@"
    }
    LOAM_TOKEN=${ada.token}
    ${more}
    ${line}`;
  return user.exec(shell, ['-c', script]);
}

/** Everything that a job was created with, but its name. */
async function settingsOf(name: string) {
  const { rows } = await app.pool.query(
    `select to_jsonb(j) as job, (select jsonb_object_agg(key, value) from job_labels where job_id = j.id) as labels
     from jobs j where name = $1`,
    [name],
  );
  const { job, labels } = rows[0];
  const { command, namespace_id, repo, branch, image, gpu, gpu_count, cpu, memory_gb, disk_gb } =
    job;
  const { env, region, timeout_minutes, retries, output_path, inputs, cost_per_hour, identity } =
    job;
  const { repository_inputs, cache, test_reports, checks, outputs_of } = job;
  const { checkpoint_path, checkpoint_minutes } = job;
  const { concurrency_group, on_conflict, max_cost, idle_timeout_minutes, snapshot_id } = job;
  const { hold_on_failure_minutes: hold, shell_access: shells, volumes: mounted } = job;
  const { secret_names, variable_names } = job;
  const { job: shown } = await ada.gql(
    'query ($namespace: String!, $name: String!) { job(namespace: $namespace, name: $name) { secretNames } }',
    { namespace: 'ada', name },
  );
  return [
    identity,
    ...[test_reports, checks, outputs_of, checkpoint_path, checkpoint_minutes],
    ...[concurrency_group, on_conflict, max_cost, idle_timeout_minutes, snapshot_id],
    ...[command, namespace_id, repo, branch, image, gpu, gpu_count, cpu, memory_gb, disk_gb],
    ...[
      env,
      region,
      timeout_minutes,
      retries,
      hold,
      shells,
      output_path,
      inputs,
      repository_inputs,
      mounted,
      cache,
      cost_per_hour,
      labels,
      shown?.secretNames,
      secret_names,
      variable_names,
    ],
  ];
}

const HOSTILE_COMMAND = String.raw`echo "$HOME" '$(id)' \`id\` \\ \' !! ~ * {a,b} ; & | # % > /dev/null --`;

const DRAFTS: [name: string, changes: Partial<Draft>][] = [
  [
    'plain',
    {
      repo: 'ada/code',
      command: 'make train',
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the text of the key has it.
      cache: "it's $HOME=k-${hash:it's} | k- | $k\n~/.npm=$(id)",
    },
  ],
  [
    'full',
    {
      repo: 'ada/code',
      branch: HOSTILE_BRANCH,
      image: 'python:3.12-slim',
      gpu: 'A100_80GB',
      gpuCount: '2',
      cpu: '16',
      memoryGb: '64',
      diskGb: '70',
      region: 'EU_WEST_1',
      timeoutMinutes: '90',
      retries: '2',
      holdOnFailureMinutes: '45',
      outputPath: `out dir/it's "$HOME"`,
      inputs: `source\nsource:it's "$HOME":in dir/\nsource::all\nada/code=code:ro\nada/code@main:=it's "$HOME"=`,
      volumes: `data:in/its set:ro\nscratch:/scratch "$HOME"\nscratch:out:rw`,
      command: `${HOSTILE_COMMAND}\nsecond 'line'\n\n`,
      env: `A=it's "$HOME" \`id\` \\n  \nEMPTY=\nEQUALS==x=`,
      secrets: 'KEY=hush',
      variableNames: 'REGION',
      secretNames: 'ANY, OTHER',
      labels: 'team=a\nalone',
      checkpointPath: `it's "$HOME"`,
      checkpointMinutes: '3',
      testReports: `reports/*.xml\n  it's "$HOME"/**.xml`,
      kept: {
        permissions: { repo: null, jobs: 'WRITE' },
        idTokens: [{ variable: 'CLOUD', audience: `https://it's/$HOME?"a"` }],
        checks: [{ metric: 'loss', max: 0.5 }],
        needs: [
          { job: 'source', when: 'FINISHED' },
          { job: 'earlier', when: 'FINISHED' },
        ],
        concurrency: { group: `it's "$HOME"`, onConflict: 'CANCEL_RUNNING' },
        maxCost: '1.50',
        idleTimeoutMinutes: 30,
      },
    },
  ],
  [
    'image',
    {
      source: 'image',
      image: 'debian:13',
      command: '-x --name other; true',
      shellAccess: 'NONE',
    },
  ],
  ['bidi', { repo: 'ada/code', command: "echo \u202e\u0007 é 💥 \t it's \\", gpu: 'T4' }],
];

test.each(DRAFTS)('the loam line creates the job of the form: %s', async (name, changes) => {
  const input = toCreateInput(newDraft(options, { namespace: 'ada', name, ...changes }));
  await submit(ada, input);
  const expected = await settingsOf(name);
  const line = formatLoamRun({ ...input, name: `${name}-loam` }, options);
  expect(line).not.toContain('hush');
  expect(await runLine(line, { more: 'export KEY=hush' })).toBe(`ada/${name}-loam\n`);
  expect(await settingsOf(`${name}-loam`)).toEqual(expected);
  expect(line).not.toMatch(/[^\P{Cc}\n]|[\u202a-\u202e]/u);
});

test('the curl line creates the job of the form, without what REST lacks', async (ctx) => {
  needs(ctx, 'curl');
  for (const [first, changes] of DRAFTS) {
    const name = `${first}-curl`;
    const without: Partial<Draft> = {
      secrets: '',
      secretNames: '',
      variableNames: '',
      labels: '',
      inputs: '',
      volumes: '',
      cache: '',
      testReports: '',
      checkpointPath: '',
      holdOnFailureMinutes: '0',
      shellAccess: 'ALLOWED',
    };
    const given = { namespace: 'ada', ...changes, ...without, kept: {} };
    const input = toCreateInput(newDraft(options, { ...given, name: `${name}-form` }));
    await submit(ada, input);
    await runLine(formatJobCurl({ ...input, name }, app.base));
    expect(await settingsOf(name)).toEqual(await settingsOf(`${name}-form`));
  }
});

test('a changed copy keeps all settings that a job can be created with', async () => {
  const pushed = { repo: 'ada/code', snapshot: SNAPSHOT, command: 'true' };
  const all: typeof DRAFTS = [...DRAFTS, ['pushed', pushed]];
  for (const [first, changes] of all) {
    const [original, copy] = [`${first}-original`, `${first}-copy`];
    const input = toCreateInput(
      newDraft(options, { namespace: 'ada', ...changes, name: original }),
    );
    await submit(ada, input);
    const variables = { namespace: 'ada', name: original, prefix: original };
    const repeated = await ada.gql(print(RerunQuery), variables);
    const draft = draftFromJob(repeated);
    expect(draft.name).toBe(`${original}-2`);
    // Values are not shown again.
    const { env = '', secrets = '' } = changes;
    await submit(ada, toCreateInput(newDraft(options, { ...draft, name: copy, env, secrets })));
    expect(await settingsOf(copy)).toEqual(await settingsOf(original));
  }
  const { __type } = await ada.gql('{ __type(name: "CreateJobInput") { inputFields { name } } }');
  const everything = Object.assign({ checkpointPath: 'kept' }, ...all.map(([, draft]) => draft), {
    source: 'repository',
  });
  const settable = Object.keys(toCreateInput(newDraft(options, everything)));
  const fields: string[] = __type.inputFields.map(({ name }: { name: string }) => name);
  // A copy of one job of an array is a single job.
  expect(fields.filter((name) => !settable.includes(name))).toEqual(['array']);
});

test('a job of another namespace than that of its repository', async () => {
  const draft = { namespace: 'lab', name: 'other', repo: 'ada/code', command: 'true' };
  const line = formatLoamRun(toCreateInput(newDraft(options, draft)), options);
  expect(line.replaceAll(' \\\n ', '')).toMatch(
    /^loam run --repo ada\/code --namespace lab --name other --cpu .* -- true$/,
  );
});

test('the loam and curl lines create the repository of the form', async (ctx) => {
  needs(ctx, 'curl');
  const plain: NewRepository = {
    namespace: 'ada',
    name: '',
    description: '',
    visibility: 'PRIVATE',
    defaultBranch: 'main',
    autoInit: false,
    gitignoreTemplate: null,
  };
  const full: NewRepository = {
    namespace: 'ada',
    name: 'full',
    visibility: 'INTERNAL',
    defaultBranch: HOSTILE_BRANCH,
    autoInit: true,
    gitignoreTemplate: 'C#',
    description: `-- it's "$HOME" \`id\` \\ !!`,
  };
  const settings = async (name: string) => {
    // An empty repository has no file, which is an error beside the data.
    const { data } = await ada.graphql(
      `query ($name: String!) { repository(namespace: "ada", name: $name) {
         description visibility defaultBranch contentAddressed branchCount
         file(path: ".gitignore") { content } } }`,
      { name },
    );
    return data.repository;
  };
  expect(formatRepoCreate(plain)).toBe('loam repo create ada/my-repository');
  for (const values of [plain, full]) {
    const name = values.name || 'plain';
    for (const client of ['form', 'loam', 'curl']) {
      const input = { ...values, name: `${name}-${client}` };
      if (client === 'loam') await runLine(formatRepoCreate(input));
      else if (client === 'curl') await runLine(formatRepositoryCurl(input, app.base));
      else
        await ada.gql(
          'mutation ($input: CreateRepositoryInput!) { createRepository(input: $input) { repository { id } } }',
          { input },
        );
    }
    const expected = await settings(`${name}-form`);
    expect(expected.defaultBranch).toBe(values.defaultBranch);
    expect(await settings(`${name}-loam`)).toEqual(expected);
    expect(await settings(`${name}-curl`)).toEqual(expected);
  }
});

/** The words that a shell makes of a line. */
async function wordsOf(shell: string, line: string): Promise<string[]> {
  const child = spawn(shell, ['-s'], {
    env: {},
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  child.stdin.end(`words() { printf '%s\\0' "$@"; }\nwords ${line}\n`);
  return (await buffer(child.stdout)).toString().split('\0').slice(0, -1);
}

test('a shell reads a quoted text as one word of the same text', async () => {
  const text = fc
    .string({ unit: 'binary', maxLength: 20 })
    .map((each) => each.replaceAll('\0', ''));
  const shellText = fc.string({
    unit: fc.constantFrom(...`ab01 '"\\$\`!~*?[]{}()<>;&|#%=,-@\n\t\r\x03\x1b\x7f\u0085\u202eé`),
  });
  const texts = fc.sample(fc.oneof(text, shellText), 2_000);
  const quoted = texts.map(quoteForShell);
  expect(await wordsOf('bash', quoted.join(' '))).toEqual(texts);
  // Other shells of POSIX have no $'…'.
  const portable = texts.filter((_, i) => !quoted[i]?.startsWith('$'));
  expect(portable.length).toBeGreaterThan(100);
  expect(await wordsOf('sh', portable.map(quoteForShell).join(' '))).toEqual(portable);
  for (const each of quoted) expect(each).not.toMatch(/[^\P{Cc}\n]|[\u202a-\u202e\u2066-\u2069]/u);
});

test('an address with words of a shell is quoted', () => {
  const line = formatCurl('http://x/a;$(id)', `{"a":"it's"}`);
  expect(line).toBe(`curl -H "Authorization: Bearer $LOAM_TOKEN" \\
  -H 'Content-Type: application/json' \\
  'http://x/a;$(id)' -d '{"a":"it'\\''s"}'`);
});
