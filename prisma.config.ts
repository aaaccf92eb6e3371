import { defineConfig } from 'prisma/config';

// `prisma generate` needs no schema engine, but looks for one and would download it when this is unset.
process.env.PRISMA_SCHEMA_ENGINE_BINARY ??= process.execPath;

export default defineConfig({
  schema: 'prisma/schema.prisma',
  migrations: { path: 'prisma/migrations' },
});
