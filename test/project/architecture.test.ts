/** The house rules that imports can break, read from the sources: see "Layout" in the README. */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';

const ROOT = join(import.meta.dirname, '../..');

type Source = { path: string; text: string; imports: string[] };

/** Each source with what it imports: paths from the root for our own files, names for packages. */
const everything: Source[] = globSync('src/**/*.{ts,tsx}', { cwd: ROOT }).map((path) => {
  const text = readFileSync(join(ROOT, path), 'utf8');
  const found = text.matchAll(/^(?:import|export)\s(?:[^'"]*?\sfrom\s)?['"]([^'"]+)['"]/gm);
  const imports = [...found].map(([, name = '']) =>
    name.startsWith('.') ? join(path, '..', name) : name,
  );
  return { path, text, imports };
});

/** The dashboard runs in browsers, and shares nothing with the server but the schema. */
const isDashboard = ({ path }: Source) => path.startsWith('src/dashboard/');
const sources = everything.filter((source) => !isDashboard(source));

/** The adapters, which import a transport: of a feature its `graphql/` and `http.ts`. Every other file is domain. */
const ADAPTER =
  /^src\/(graphql|rest|http)\/|^src\/(main|app|upkeep)\.ts$|^src\/\w+\/(graphql\/|http\.ts$)/;
const FEATURES = ['auth', 'git', 'repos', 'jobs', 'webhooks', 'feed', 'lfs', 'ssh'];

/** `path imports name` for each import of the `from` files that matches `to`. */
function crossings(from: (s: Source) => boolean, to: RegExp): string[] {
  return sources
    .filter(from)
    .flatMap(({ path, imports }) =>
      imports.filter((i) => to.test(i)).map((i) => `${path} imports ${i}`),
    );
}

const feature = (path: string) => /^src\/(\w+)\//.exec(path)?.[1];
const isAdapter = ({ path }: Source) => ADAPTER.test(path);

test('domain files import no transport', () => {
  const transports = /^(express|graphql|graphql-yoga|sofa-api|fets)($|\/)|^@pothos\/|^@graphql-/;
  expect(crossings((s) => !isAdapter(s), transports)).toEqual([]);
  expect(crossings((s) => !isAdapter(s), ADAPTER)).toEqual([]);
});

test('the dashboard and the server import nothing of each other', () => {
  const own = everything
    .filter(isDashboard)
    .flatMap(({ path, imports }) =>
      imports
        .filter((i) => /^(?:src|test|prisma)\//.test(i) && !i.startsWith('src/dashboard/'))
        .map((i) => `${path} imports ${i}`),
    );
  expect(own).toEqual([]);
  expect(crossings(() => true, /^src\/dashboard\//)).toEqual([]);
});

test('git is a leaf, and so are waiting for turns and starting programs, which it shares with others', () => {
  const shared = /^src\/(?!git\/|limits\/turns\.ts$|processes\/starter\.ts$)/;
  expect(crossings((s) => feature(s.path) === 'git', shared)).toEqual([]);
  expect(crossings((s) => s.path === 'src/platform/limits/fair-semaphore.ts', /./)).toEqual([]);
  expect(crossings((s) => feature(s.path) === 'processes', /^src\/(?!processes\/)/)).toEqual([]);
});

test('features build on each other in one direction: auth, then repos, then the rest', () => {
  const above: Record<string, RegExp> = {
    auth: /^src\/(repos|lfs|jobs|ssh|webhooks|feed)\//,
    repos: /^src\/(lfs|jobs|ssh|webhooks|feed)\//,
    lfs: /^src\/(jobs|webhooks|feed)\//,
    jobs: /^src\/(lfs|ssh|webhooks|feed)\//,
    webhooks: /^src\/feed\//,
  };
  for (const [name, forbidden] of Object.entries(above))
    expect(crossings((s) => feature(s.path) === name, forbidden)).toEqual([]);
  // services.ts names the types of what every feature has to offer.
  const below = (s: Source) =>
    !['webhooks', 'feed'].includes(feature(s.path) ?? '') && s.path !== 'src/services.ts';
  expect(crossings((s) => below(s) && !isAdapter(s), /^src\/webhooks\//)).toEqual([]);
});

test('a feature is reached through the file named after it', () => {
  // auth has several: who is asking, what they may do, and the accounts themselves. Those who create jobs ask
  // repos.ts for a commit; those who run them, maybe on another machine, ask checkouts.ts for its files. transfers.ts and
  // folder.ts are what every way to fetch and push needs; event-types.ts is the names that webhooks and the feed share.
  const inner = FEATURES.filter((f) => f !== 'auth' && f !== 'git').join('|');
  for (const name of FEATURES) {
    const intoOthers = new RegExp(
      `^src/(?!${name}/)(${inner})/(?!(\\1|checkouts|event-types|transfers|folder)\\.ts$|graphql/|http\\.ts$)`,
    );
    expect(crossings((s) => feature(s.path) === name && !isAdapter(s), intoOthers)).toEqual([]);
  }
});

test('what features are built on imports none of them', () => {
  const foundations = /^src\/(audit|crypto|database|events|limits|storage)\//;
  expect(
    crossings(
      (s) => foundations.test(s.path),
      /^src\/(auth|repos|jobs|lfs|ssh|webhooks|graphql|rest|http)\//,
    ),
  ).toEqual([]);
});

test('a feature has its GraphQL in one folder, and no file beside a folder of its name', () => {
  const folders = new Set(sources.map(({ path }) => path.slice(0, path.lastIndexOf('/'))));
  const beside = sources.map(({ path }) => path.replace(/\.ts$/, '')).filter((p) => folders.has(p));
  expect(beside).toEqual([]);
});

test('requests and the worker of jobs meet in the database alone', () => {
  const worker = /^src\/jobs\/worker\//;
  const serving = /^src\/jobs\/(jobs|following|http)\.ts$|^src\/jobs\/graphql\//;
  expect(crossings((s) => serving.test(s.path), worker)).toEqual([]);
  expect(crossings((s) => worker.test(s.path), serving)).toEqual([]);
});

test('docs/architecture.md follows requests through files that call each other', () => {
  const page = readFileSync(join(ROOT, 'docs/architecture.md'), 'utf8');
  const known = new Map(sources.map((source) => [source.path, source]));
  const named = [...page.matchAll(/`(src\/[\w/.-]+\.\w+)`/g)].map(([, path = '']) => path);
  expect(named.filter((path) => !known.has(path))).toEqual([]);

  const tables = page.split(/^\| File \|.*\n\|---\|---\|\n/m).slice(1);
  expect(tables.length).toBe(5);
  for (const table of tables) {
    const seen = new Set<string>();
    /** Those of this part of the path: a row without a file ends it, where something else than a call goes on. */
    let part: Source[] = [];
    for (const row of table.slice(0, table.indexOf('\n\n')).split('\n')) {
      const path = /^\| `(src[^`]+)` \|/.exec(row)?.[1];
      const source = known.get(path ?? '');
      if (!path || !source) {
        expect(row, 'a row names a file, or says in italics what goes on').toMatch(
          /^\| \*.+\* \| \|$/,
        );
        part = [];
        continue;
      }
      expect(seen, 'no path enters a file twice').not.toContain(path);
      seen.add(path);
      const isCalled = part.length === 0 || part.some(({ imports }) => imports.includes(path));
      expect(isCalled, `${path} is imported by a file before it`).toBe(true);
      part.push(source);
    }
  }
});

test('nothing imports the composition root but its entry', () => {
  expect(crossings((s) => s.path !== 'src/main.ts', /^src\/app\.ts$/)).toEqual([]);
});

test('the environment is read in config.ts, and the process ended in main.ts', () => {
  const uses = (pattern: RegExp) =>
    sources.filter(({ text }) => pattern.test(text)).map(({ path }) => path);
  // Those are programs of their own.
  const small =
    /^src\/(?:jobs\/runners\/(?:process\/shim|docker\/recorder)|ssh\/front\/main|processes\/starting)/;
  expect(uses(/process\.exit\(/).filter((p) => !small.test(p))).toEqual(['src/main.ts']);
  // Handing PATH on to a child process configures nothing.
  expect(uses(/process\.env\b(?!\.PATH)/)).toEqual(['src/base/config/config.ts']);
});

test('git is started in one place', () => {
  const starters = sources.filter(({ text }) =>
    /(spawn|execFile|exec|fork)\w*\(\s*['"`]git['"`]/.test(text),
  );
  expect(starters.map(({ path }) => path).filter((p) => p !== 'src/git/processes/run.ts')).toEqual(
    [],
  );
});

test('no file holds two concepts: none is longer than 400 lines', () => {
  const long = sources.filter(({ text }) => text.split('\n').length > 400).map(({ path }) => path);
  expect(long).toEqual([]);
});

test('names explain: no utils, helpers, common, types', () => {
  const vague = sources.filter(({ path }) =>
    /\/(utils?|helpers?|common|misc|types)(\.|\/)/.test(path),
  );
  expect(vague.map(({ path }) => path)).toEqual([]);
});
