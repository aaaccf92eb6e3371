/** The contract of runners on a real Kubernetes cluster. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe } from 'vitest';
import type { KubernetesConfig } from '../../../src/base/config/kubernetes.ts';
import type { CurrentVolumes } from '../../../src/base/config/volumes-file.ts';
import { newId } from '../../../src/base/ids.ts';
import { createLog } from '../../../src/base/log.ts';
import { openKubernetesEngine } from '../../../src/runners/kubernetes/engine.ts';
import { agentRunner } from '../../support/agent-runner.ts';
import { execContract } from '../../support/exec.contract.ts';
import { type KubeCluster, openKubeCluster } from '../../support/kube/kube.ts';
import { has } from '../../support/needs.ts';
import { filesContract, runnerContract } from '../../support/runner.contract.ts';
import { volumesContract } from '../../support/volumes.contract.ts';
import { claimOf, type TestVolumes } from '../../support/volumes.ts';

let cluster: KubeCluster;

beforeAll(async () => {
  if (has('kubernetes')) cluster = await openKubeCluster();
});
afterAll(() => cluster?.[Symbol.asyncDispose]());

/** @param changes of the configuration */
function kubernetesRunner(changes: Partial<KubernetesConfig> = {}, volumes?: CurrentVolumes) {
  const worker = newId('srv');
  const { hostAddress: host } = cluster;
  const config = { ...cluster.config, ...changes };
  const log = createLog('silent');
  const agentUrl = `http://${host}:3000`;
  return agentRunner(() => openKubernetesEngine({ config, worker, agentUrl, volumes, log }), {
    host,
  });
}

/** Declares a claim of a folder of this machine, which is that of the nodes too, for each volume. */
async function createClaims({ root, declared }: TestVolumes): Promise<void> {
  const items = declared.current
    .filter(({ claim }) => claim !== null)
    .flatMap(({ name, path }) => {
      const spec = {
        storageClassName: '',
        accessModes: ['ReadWriteMany'],
      };
      const claim = claimOf(root, name);
      return [
        {
          apiVersion: 'v1',
          kind: 'PersistentVolume',
          metadata: { name: claim },
          spec: { ...spec, capacity: { storage: '1Gi' }, hostPath: { path, type: 'Directory' } },
        },
        {
          apiVersion: 'v1',
          kind: 'PersistentVolumeClaim',
          metadata: { name: claim },
          spec: { ...spec, volumeName: claim, resources: { requests: { storage: '1Gi' } } },
        },
      ];
    });
  const file = join(root, 'claims.json');
  await writeFile(file, JSON.stringify({ apiVersion: 'v1', kind: 'List', items }));
  await cluster.kubectl('apply', '-f', file);
}

describe('kubernetes', () => {
  runnerContract(() => kubernetesRunner(), 'kubernetes');
  filesContract(() => kubernetesRunner(), 'kubernetes');
  volumesContract(
    {
      open: async (volumes) => {
        await createClaims(volumes);
        return kubernetesRunner({}, volumes.declared);
      },
      mounts: true,
      links: true,
    },
    'kubernetes',
  );
  execContract(() => kubernetesRunner({ defaultImage: 'loam.test/shell:1' }));
});
