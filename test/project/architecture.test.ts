/** The rules on imports of docs/architecture.md, "Directions", checked in the sources. */
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

/** The dashboard and the command run elsewhere, and share nothing with the server but the schema. */
const CLIENTS = ['dashboard', 'cli'];
const isClient = ({ path }: Source) => CLIENTS.some((name) => path.startsWith(`src/${name}/`));
/** Builds the clients, outside of the server. */
const isBuild = ({ path }: Source) => /^src\/programs\/(?:build|schema-types)\.ts$/.test(path);
const sources = everything.filter((source) => !isClient(source) && !isBuild(source));

/** The folders of `src/`. Each imports only from folders before it. Files beside them (app, main) import from all. */
const FLOORS = [
  'base',
  'platform',
  'git',
  'cluster',
  'identity',
  'repositories',
  'runners',
  'jobs',
  'automation',
  'webhooks',
  'feed',
  'api',
  'programs',
];

/**
 * Adapters import a transport: the servers, ssh, and of a feature its `graphql/` and `http.ts` or `http/`. Every other file is
 * domain.
 */
const ADAPTER =
  /^src\/(api|platform\/schema|platform\/web)\/|^src\/(main|app|maintenance)\.ts$|^src\/[\w/]+\/(graphql\/|http\/|http\.ts$)/;

/** `path imports name` for each import of the `from` files that matches `to`. */
function crossings(from: (s: Source) => boolean, to: RegExp): string[] {
  return sources
    .filter(from)
    .flatMap(({ path, imports }) =>
      imports.filter((i) => to.test(i)).map((i) => `${path} imports ${i}`),
    );
}

const folder = (path: string) => /^src\/(\w+)\//.exec(path)?.[1] ?? 'src';
const isAdapter = ({ path }: Source) => ADAPTER.test(path);

test('imports point downwards', () => {
  const folders = new Set(sources.map(({ path }) => folder(path)));
  expect([...folders].filter((one) => one !== 'src').sort()).toEqual([...FLOORS].sort());
  for (const [floor, name] of FLOORS.entries()) {
    const above = FLOORS.slice(floor + 1).join('|');
    const upwards = new RegExp(`^src/(?:(?:${above || '-'})/|[\\w-]+\\.ts$)`);
    expect(crossings(({ path }) => folder(path) === name, upwards)).toEqual([]);
  }
});

test('no imports form a circle, of types included', () => {
  const imports = new Map(sources.map((source) => [source.path, source.imports]));
  const done = new Set<string>();
  const circles: string[] = [];
  const visit = (path: string, trail: string[]) => {
    if (done.has(path)) return;
    if (trail.includes(path)) {
      circles.push([...trail.slice(trail.indexOf(path)), path].join(' → '));
      return;
    }
    for (const next of imports.get(path) ?? []) visit(next, [...trail, path]);
    done.add(path);
  };
  for (const path of imports.keys()) visit(path, []);
  expect(circles).toEqual([]);
});

/** The folders within a feature; its other files are rooms of their own. */
const room = (path: string) => path.split('/').slice(0, 3).join('/');

/** The rooms of a feature on floors: each room imports only from floors before its own, unless it is in a circle. */
function layRooms(feature: string): { floors: string[][]; arrows: number; circle: string[] } {
  const own = sources.filter(({ path }) => folder(path) === feature);
  const below = new Map(own.map(({ path }) => [room(path), new Set<string>()]));
  for (const { path, imports } of own)
    for (const to of imports.map(room))
      if (to !== room(path) && below.has(to)) below.get(room(path))?.add(to);
  const arrows = [...below.values()].reduce((sum, { size }) => sum + size, 0);
  const floors: string[][] = [];
  const placed = new Set<string>();
  for (;;) {
    const next = [...below].filter(([one, to]) => !placed.has(one) && to.isSubsetOf(placed));
    if (next.length === 0) break;
    floors.push(next.map(([one]) => one));
    for (const [one] of next) placed.add(one);
  }
  return { floors, arrows, circle: [...below.keys()].filter((one) => !placed.has(one)) };
}

test('the rooms of jobs and runners form no circle', () => {
  for (const feature of ['jobs', 'runners']) {
    const { floors, arrows, circle } = layRooms(feature);
    const rooms = floors.flat().length;
    console.log(`${feature}: ${rooms} rooms, ${floors.length} floors, ${arrows} arrows`);
    expect(circle).toEqual([]);
  }
});

test('domain files import no transport', () => {
  const transports = /^(express|graphql|graphql-yoga|sofa-api)($|\/)|^@pothos\/|^@graphql-/;
  expect(crossings((s) => !isAdapter(s), transports)).toEqual([]);
  expect(crossings((s) => !isAdapter(s), ADAPTER)).toEqual([]);
});

test('the clients and the server import nothing of each other', () => {
  const own = everything.filter(isClient).flatMap(({ path, imports }) =>
    imports
      .filter((i) => /^(?:src|test|prisma)\//.test(i))
      .filter((i) => !i.startsWith(`src/${path.split('/')[1]}/`))
      .map((i) => `${path} imports ${i}`),
  );
  expect(own).toEqual([]);
  expect(crossings(() => true, /^src\/(?:dashboard|cli)\//)).toEqual([]);
});

test('requests and the worker of jobs meet in the database alone', () => {
  const worker = /^src\/jobs\/attempts\//;
  const serving = /^src\/jobs\/(requests\/(jobs|following)|http)\.ts$|^src\/jobs\/graphql\//;
  expect(crossings((s) => serving.test(s.path), worker)).toEqual([]);
  expect(crossings((s) => worker.test(s.path), serving)).toEqual([]);
});

test('a feature has no file beside a folder of its name', () => {
  const folders = new Set(sources.map(({ path }) => path.slice(0, path.lastIndexOf('/'))));
  const beside = sources.map(({ path }) => path.replace(/\.ts$/, '')).filter((p) => folders.has(p));
  expect(beside).toEqual([]);
});

test('docs/architecture.md follows requests through files that call each other', () => {
  const page = readFileSync(join(ROOT, 'docs/architecture.md'), 'utf8');
  const known = new Map(sources.map((source) => [source.path, source]));
  const named = [...page.matchAll(/`(src\/[\w/.-]+\.\w+)`/g)].map(([, path = '']) => path);
  expect(named.filter((path) => !known.has(path))).toEqual([]);

  const tables = page.split(/^\| File \|.*\n\|---\|---\|\n/m).slice(1);
  expect(tables.length).toBe(6);
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
    /^src\/(?:runners\/(?:process\/shim|docker\/container-shim)|api\/ssh\/front\/main|platform\/processes\/starting)/;
  // Those are, or contain, programs for the nodes of a cluster and for joined machines.
  const remote =
    /^src\/runners\/(?:agent\/(?:agent|bootstrap|work)|slurm\/batch-job|kubernetes\/pod|worker\/worker)\.ts$/;
  const isHere = (path: string) => !small.test(path) && !remote.test(path);
  expect(uses(/process\.exit\(/).filter(isHere)).toEqual(['src/main.ts']);
  // Handing PATH on to a child process configures nothing.
  expect(uses(/process\.env\b(?!\.PATH)/).filter((path) => !remote.test(path))).toEqual([
    'src/base/config/config.ts',
  ]);
});

test('git is started in one place', () => {
  const starters = sources.filter(({ text }) =>
    /(spawn|execFile|exec|fork)\w*\(\s*['"`]git['"`]/.test(text),
  );
  expect(starters.map(({ path }) => path).filter((p) => p !== 'src/git/processes/run.ts')).toEqual(
    [],
  );
});

test('only the backoff doubles pauses', () => {
  // Those run as programs of their own on nodes and beside containers.
  const programs = ['src/runners/agent/bootstrap.ts', 'src/runners/docker/container-shim.ts'];
  const doubling =
    /Math\.min\((?:2 \* (?:\w*pause|\w*delay|ms)\b|\w*(?:pause|delay|backoff) \* 2)/i;
  const found = sources.filter(({ text }) => doubling.test(text)).map(({ path }) => path);
  expect(found.sort()).toEqual(programs);
});

test('names explain: no utils, helpers, common, types', () => {
  const vague = sources.filter(({ path }) =>
    /\/(utils?|helpers?|common|misc|types)(\.|\/)/.test(path),
  );
  expect(vague.map(({ path }) => path)).toEqual([]);
});
