import { describe } from 'vitest';
import { DOCKER } from '../../support/docker.ts';
import { shellClients } from '../../support/shell-clients.contract.ts';

describe('SSH clients in a container', () => {
  shellClients(
    async () => ({
      config: { runner: 'docker', docker: DOCKER },
      job: { image: 'loam-test/shell' },
    }),
    'docker',
  );
});
