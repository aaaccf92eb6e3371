import { describe } from 'vitest';
import { shellClients } from '../../support/shell-clients.contract.ts';

describe('SSH clients in a process', () => {
  shellClients(async () => ({ config: { runner: 'process' }, job: {} }));
});
