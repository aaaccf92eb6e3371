/**
 * `npm run migrate:new -- add_something`: writes the SQL from the last migration to `schema.prisma`.
 *
 * Prisma's CLI would download a native schema engine for this; the same engine exists as WebAssembly,
 * driven here over a throw-away embedded PostgreSQL as its shadow database. Read what it wrote and add
 * what a Prisma schema cannot say (checks, xid8 columns) by hand, before it is ever applied.
 */
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PrismaPg } from '@prisma/adapter-pg';
import { bindMigrationAwareSqlAdapterFactory, ColumnTypeEnum } from '@prisma/driver-adapter-utils';
import pg from 'pg';
import { createLog } from '../src/base/log.ts';
import { startPostgres } from '../src/platform/database/embedded.ts';
import { readFunctions, readMigrations } from '../src/platform/database/migrate.ts';

const SCHEMA = join(import.meta.dirname, 'schema.prisma');
const FOLDER = join(import.meta.dirname, 'migrations');
const FILTERS = { externalTables: [], externalEnums: [] };

async function difference(host: string, user: string): Promise<string> {
  const content = await readFile(SCHEMA, 'utf8');
  const { SchemaEngine } = await loadEngine();
  const engine = await SchemaEngine.new(
    { datamodels: [['schema.prisma', content]] },
    () => {},
    adapters(host, user),
  );
  // The schema uses a function, so they count as the last migration here.
  const functions = { name: 'functions', sql: (await readFunctions()).sql };
  const migrations = [...(await readMigrations()), functions];
  const { stdout } = await engine.diff({
    from: {
      tag: 'migrations',
      baseDir: FOLDER,
      lockfile: { path: 'migration_lock.toml', content: 'provider = "postgresql"\n' },
      shadowDbInitScript: '',
      migrationDirectories: migrations.map(({ name, sql }) => ({
        path: name,
        migrationFile: { path: 'migration.sql', content: { tag: 'ok', value: sql } },
      })),
    },
    to: { tag: 'schemaDatamodel', files: [{ path: 'schema.prisma', content }] },
    script: true,
    exitCode: null,
    filters: FILTERS,
  });
  return withoutUnchangedIndexes(stdout ?? '', migrations.map(({ sql }) => sql).join());
}

/** The engine drops and creates again each index with an operator class, because it cannot compare them. */
function withoutUnchangedIndexes(sql: string, existing: string): string {
  const created = /-- CreateIndex\n(CREATE (?:UNIQUE )?INDEX "(\w+)".*;)\n*/g;
  let rest = sql;
  for (const [block, statement = '', name] of sql.matchAll(created)) {
    const drop = new RegExp(`-- DropIndex\\nDROP INDEX "${name}";\\n*`);
    if (existing.includes(statement) && drop.test(rest))
      rest = rest.replace(drop, '').replace(block, '');
  }
  return rest;
}

/** The package's entry imports `.wasm` as a module, which Node does not do without a flag. */
async function loadEngine() {
  const entry = import.meta.resolve('@prisma/schema-engine-wasm/schema_engine_bg');
  const glue = await import('@prisma/schema-engine-wasm/schema_engine_bg');
  const wasm = await readFile(new URL('schema_engine_bg.wasm', entry));
  const { instance } = await WebAssembly.instantiate(wasm, { './schema_engine_bg.js': glue });
  glue.__wbg_set_wasm(instance.exports);
  (instance.exports as { __wbindgen_start(): void }).__wbindgen_start();
  return glue;
}

/** The engine's two databases: ours, and the empty `postgres` beside it as the shadow. */
function adapters(host: string, user: string) {
  const connect = async (database: string) => {
    const pool = new ScriptPool({ host, user, database });
    const connection = await new PrismaPg(pool).connect();
    const queryRaw = connection.queryRaw.bind(connection);
    return Object.assign(connection, {
      queryRaw: async (query: Parameters<typeof queryRaw>[0]) => {
        const result = await queryRaw(query);
        const columnTypes = result.columnTypes.map((type) =>
          type === ColumnTypeEnum.CharacterArray ? ColumnTypeEnum.Character : type,
        );
        return { ...result, columnTypes };
      },
      // Prisma's own splits at every `;`, also inside a function's body.
      executeScript: async (script: string) => void (await pool.query(script)),
      dispose: () => pool.end(),
    });
  };
  return bindMigrationAwareSqlAdapterFactory({
    provider: 'postgres' as const,
    adapterName: 'loam-migrate',
    connect: () => connect('loam'),
    connectToShadowDb: () => connect('postgres'),
  });
}

/**
 * PostgreSQL's catalogues use the type `"char"`, which Prisma's adapter does not know and the engine insists on:
 * shown to the adapter as `"char"[]`, which no catalogue query returns, and to the engine as a character.
 */
class ScriptPool extends pg.Pool {
  // biome-ignore lint/suspicious/noExplicitAny: pg declares six overloads; all are passed through.
  override async query(...args: any[]): Promise<any> {
    const result = await (super.query as (...a: unknown[]) => Promise<pg.QueryArrayResult>)(
      ...args,
    );
    for (const field of result.fields ?? []) if (field.dataTypeID === 18) field.dataTypeID = 1002;
    return result;
  }
}

const title = process.argv[2] ?? '';
if (!/^[a-z0-9_]+$/.test(title)) {
  console.error('usage: npm run migrate:new -- what_it_does   (a-z, 0-9 and _)');
  process.exit(2);
}

const scratch = await mkdtemp(join(tmpdir(), 'loam-migrate-'));
const postgres = await startPostgres(scratch);
// It is stopped also when somebody is still connected: an engine that panics leaves its connections open.
postgres.takeOwnership(createLog('warn'));
// Its panic is an error that nobody awaits, and so are those of its connections when PostgreSQL stops.
const panic = new Promise<never>((_, reject) => process.on('uncaughtException', reject));
try {
  const { host, user } = postgres.target;
  const sql = await Promise.race([difference(host, user), panic]);
  if (/^\s*(-- This is an empty migration\.)?\s*$/.test(sql)) {
    console.log('schema.prisma and the migrations agree: nothing to write.');
  } else {
    const stamp = new Date().toISOString().replace(/\D/g, '').slice(0, 14);
    const folder = join(FOLDER, `${stamp}_${title}`);
    await mkdir(folder);
    await writeFile(join(folder, 'migration.sql'), sql);
    console.log(`Wrote ${folder}/migration.sql: read it before you commit it.`);
  }
} catch (error) {
  console.error(error);
  process.exitCode = 1;
}
await postgres.stop();
await rm(scratch, { recursive: true, force: true });
// Connections of an engine that panicked would keep us.
process.exit();
