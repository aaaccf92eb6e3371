/**
 * PostGraphile with its recommended preset over the database of the server: no authentication, no rights, nothing but the API that
 * it makes of the tables.
 *
 *   node serve.js <socket folder>     prints its port
 */
import { createServer } from 'node:http';
import { postgraphile } from 'postgraphile';
import { makePgService } from 'postgraphile/adaptors/pg';
import { grafserv } from 'postgraphile/grafserv/node';
import { PostGraphileAmberPreset } from 'postgraphile/presets/amber';

const [, , host] = process.argv;
// It tells of types that it does not know: the port alone is printed.
console.log = () => {};
const pgService = makePgService({
  poolConfig: { host, user: 'loam', database: 'loam', max: 20 },
  schemas: ['public'],
});
const server = createServer();
const handler = postgraphile({
  extends: [PostGraphileAmberPreset],
  pgServices: [pgService],
  grafserv: { graphiql: false, watch: false },
  grafast: { explain: false },
}).createServ(grafserv);
await handler.addTo(server);
await handler.getSchema();
server.listen(0, '127.0.0.1', () => process.stdout.write(`${server.address().port}\n`));
