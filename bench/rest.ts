/**
 * `npm run bench:rest [--quick] [rows]`: a repository, a list of 20 and a job, over REST and GraphQL, against peers on the same
 * database in one run: hand-written Express with Prisma and the same authentication (`express-prisma.ts`), Express with `pg` and
 * the same authentication (`express-pg.ts`), and `node:http` with `pg` and no authentication (`bare-http.ts`). Rounds alternate, so
 * that other load of the machine affects all servers; they start when the CPU time per request has stopped falling. `rows`
 * selects rows by parts of their names.
 *
 * The CPU time is that of the server's process and, in brackets, with that of PostgreSQL, which all servers share.
 */
import { isDeepStrictEqual } from 'node:util';
import { answerOf, compare, type Rival } from './rivals.ts';
import { start } from './script.ts';
import { openSeeded, queriesOf } from './seeded.ts';

/** For CI: fewer and shorter rounds, which give the ratio to within a third. */
const [, , ...given] = process.argv;
const IS_QUICK = given.includes('--quick');
/** Parts of the names of rows. */
const PARTS = given.filter((one) => one !== '--quick');

await using cleanup = new AsyncDisposableStack();
const { base, pid, headers, id, sockets, postmaster } = await openSeeded(cleanup);
const effort = {
  rounds: IS_QUICK ? 3 : 7,
  seconds: IS_QUICK ? 1 : 2,
  maxWarming: IS_QUICK ? 3 : 8,
  postmaster,
};
/** As in production: Express and other libraries then do less work. */
const PRODUCTION = { NODE_ENV: 'production' };
const peer = await start(cleanup, 'bench/express-prisma.ts', [sockets], PRODUCTION);
const withPg = await start(cleanup, 'bench/express-pg.ts', [sockets], PRODUCTION);
const bare = await start(cleanup, 'bench/bare-http.ts', [sockets], PRODUCTION);

const queries = queriesOf(id);
const [one, list, job] = [
  `/auth/v1/repository/admin/${id}`,
  '/auth/v1/repository/admin',
  '/auth/v1/admin/job/one',
];
/** `alike`: all servers return identical bodies, including the lower bound. */
const ROWS: { title: string; path: string; body?: string; alike?: boolean }[] = [
  { title: 'REST, a repository', path: one, alike: true },
  { title: 'REST, a list of 20', path: list, alike: true },
  { title: 'REST, a job', path: job },
  { title: 'GraphQL, a repository', path: one, body: queries.one },
  { title: 'GraphQL, a list of 20', path: list, body: queries.list },
  { title: 'GraphQL, a job', path: job, body: queries.job },
];

for (const { title, path, body, alike } of ROWS) {
  if (PARTS.length > 0 && !PARTS.some((part) => title.includes(part))) continue;
  const over = (port: string) => `http://127.0.0.1:${port}${path}`;
  const rivals: Rival[] = [
    body
      ? { name: 'loam', pid, url: `${base}/graphql`, method: 'POST', body, headers }
      : { name: 'loam', pid, url: base + path, headers },
    { name: 'peer', pid: peer.pid, url: over(peer.greeting), headers },
    ...(IS_QUICK
      ? []
      : [{ name: 'express and pg', pid: withPg.pid, url: over(withPg.greeting), headers }]),
    ...(alike ? [{ name: 'bare', pid: bare.pid, url: over(bare.greeting), headers }] : []),
  ];
  const [first, ...others] = await Promise.all(rivals.map(answerOf));
  if (alike && !others.every((one) => isDeepStrictEqual(first, one)))
    throw new Error(`they answer differently: ${JSON.stringify([first, ...others])}`);
  await compare(title, rivals, effort);
}
