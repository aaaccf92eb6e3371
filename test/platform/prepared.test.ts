/** Statements whose columns a connection describes once answer what pg answers, fail as they do there, and leave nothing behind. */
import pg from 'pg';
import { afterAll, beforeAll, beforeEach, expect, inject, test } from 'vitest';
import { readObjects, readValues } from '../../src/database/prepared.ts';

const { host, user } = inject('postgres');
let pool: pg.Pool;
let described = 0;

beforeAll(() => {
  // Of one connection, as everything here is about what it knows.
  pool = new pg.Pool({ host, user, database: 'postgres', max: 1, pipeline: true });
  pool.on('connect', (client) => {
    const { connection } = client as unknown as { connection: NodeJS.EventEmitter };
    connection.on('rowDescription', () => described++);
  });
});
beforeEach(() => {
  described = 0;
});
afterAll(() => pool.end());

const KINDS = {
  name: 'kinds',
  text: `select $1::int as i, null::text as n, 'é' as t, now() as at, '{"a": 1}'::json as j, array['x', null] as l, '\\x00ff'::bytea as b,
    9007199254740993 as big, 1.50::numeric as money, true as yes`,
};

test('values of every kind are read as pg reads them', async () => {
  await pool.query('begin');
  const { rows } = await pool.query(KINDS.text, [7]);
  for (let i = 0; i < 3; i++) expect(await readObjects(pool, KINDS, [7])).toEqual(rows);
  expect(await readValues(pool, KINDS, [7])).toEqual(rows.map(Object.values));
  await pool.query('rollback');
});

test('a connection describes the columns of a statement once', async () => {
  const statement = { name: 'once', text: 'select $1::int as i from generate_series(1, 3)' };
  const answers = [];
  for (let i = 0; i < 5; i++) answers.push(await readValues(pool, statement, [i]));
  expect(answers).toEqual([0, 1, 2, 3, 4].map((i) => [[i], [i], [i]]));
  expect(described).toBe(1);
});

test('a statement without a name is described each time', async () => {
  const statement = { name: undefined, text: 'select $1::int as i' };
  expect([
    await readValues(pool, statement, [1]),
    await readValues(pool, { ...statement, text: 'select $1::text as t' }, ['1']),
  ]).toEqual([[[1]], [['1']]]);
});

test('what is asked at once is answered to each that asked', async () => {
  const statement = { name: 'together', text: 'select $1::int as i' };
  const answers = [1, 2, 3].map((i) => readValues(pool, statement, [i]));
  expect(await Promise.all(answers)).toEqual([[[1]], [[2]], [[3]]]);
});

test('one that fails says why, and the next is answered', async () => {
  const divided = { name: 'divided', text: 'select 1 / $1::int as i' };
  expect(await readValues(pool, divided, [1])).toEqual([[1]]);
  await expect(readValues(pool, divided, [0])).rejects.toThrow('division by zero');
  await expect(readValues(pool, { name: 'bad', text: 'selct $1' }, [1])).rejects.toThrow('syntax');
  expect(await readValues(pool, divided, [1])).toEqual([[1]]);
});

test('a value that cannot be read fails its own read alone', async () => {
  const UUID = pg.types.builtins.UUID;
  const before = pg.types.getTypeParser(UUID);
  pg.types.setTypeParser(UUID, () => {
    throw new Error('no value');
  });
  try {
    const statement = { name: 'unreadable', text: 'select gen_random_uuid() where $1::bool' };
    await expect(readValues(pool, statement, [true])).rejects.toThrow('no value');
    expect(await readValues(pool, statement, [false])).toEqual([]);
  } finally {
    pg.types.setTypeParser(UUID, before);
  }
});

test('columns that another type is given are refused by PostgreSQL, not read as what they were', async () => {
  const statement = { name: 'changing', text: 'select v from pg_temp.changing where $1::bool' };
  await pool.query('create temp table changing as select 1 as v');
  expect(await readValues(pool, statement, [true])).toEqual([[1]]);
  await pool.query(`alter table changing alter column v type text using 'one'`);
  await expect(readValues(pool, statement, [true])).rejects.toThrow('cached plan');
});
