/**
 * `npm run bench:rest [--quick] [rows]`: a repository, a list of 20 and a job, over REST and GraphQL, against peers on the same
 * database in one run: Express and Prisma by hand with the same authentication (`express-prisma.ts`), Express and `pg` with the
 * same (`express-pg.ts`), and `node:http` and `pg` alone without any (`bare-http.ts`). Rounds alternate, so that whatever else the
 * machine does meets all; they begin when the CPU of a request has stopped falling. `rows`: parts of the names of those to be
 * measured.
 *
 * The CPU is that of the server's process, and in brackets with PostgreSQL's, whose processes serve all in turns.
 */
import { isDeepStrictEqual } from 'node:util';
import { answerOf, compare, type Rival } from './rivals.ts';
import { start } from './script.ts';
import { openSeeded, queriesOf } from './seeded.ts';

/** For CI: fewer and shorter rounds, which say the ratio to a third. */
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
/** Express and others do less then. */
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
/** `alike`: all answer the same to the letter, and the floor too. */
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
