/** The file of `LOAM_VOLUMES`. */
import { writeFileSync } from 'node:fs';
import { mkdtempDisposable } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { readConfig } from '../../src/base/config/config.ts';
import { parseVolumes } from '../../src/base/config/volumes-file.ts';

const FILE = `
volumes:
  - { name: imagenet, path: /srv//imagenet/, claim: imagenet-pvc, namespaces: [Ada], max_gb: 500.5 }
  - { name: scratch, path: /srv/scratch, access: write, per_namespace: true }
`;

test('a file declares volumes', () => {
  expect(parseVolumes(FILE)).toEqual({
    volumes: [
      {
        name: 'imagenet',
        path: '/srv/imagenet',
        claim: 'imagenet-pvc',
        namespaces: ['ada'],
        access: 'read',
        perNamespace: false,
        maxGb: 500.5,
      },
      {
        name: 'scratch',
        path: '/srv/scratch',
        claim: null,
        namespaces: null,
        access: 'write',
        perNamespace: true,
        maxGb: null,
      },
    ],
    problems: [],
  });
  expect(parseVolumes('').volumes).toEqual([]);
});

test('mistakes name the entry and its place', () => {
  const one = (entry: string) =>
    parseVolumes(`volumes: [${entry}]`).problems.map(({ message }) => message);
  for (const path of ['srv', '/', '//', '/srv/../etc', '/a\\0b'])
    expect(one(`{ name: data, path: "${path}" }`), path).toEqual([
      expect.stringMatching(
        /^volumes\[0\]\.path: must be an absolute path without "\.\.".*\(volume data\)$/,
      ),
    ]);
  expect(one('{ name: data }')).toEqual([
    'volumes[0].name: must have a path, a claim, or both (volume data)',
  ]);
  expect(one('{ name: "../x", path: /srv }')[0]).toMatch(/^volumes\[0\]\.name: must be 1 to 64/);
  expect(one('{ name: data, path: /srv, access: rw }')[0]).toMatch(
    /^volumes\[0\]\.access: must be one of read, write \(volume data\)$/,
  );
  expect(one('{ name: data, claim: A_B }')[0]).toMatch(/claim: must be the name/);
  expect(one('{ name: data, path: /srv, namespaces: [] }')[0]).toMatch(/namespaces/);
  expect(one('{ name: data, path: /srv, namespaces: [a/b] }')[0]).toMatch(/namespace/);
  expect(one('{ name: data, path: /srv, max_gb: 0 }')[0]).toMatch(/max_gb/);
  expect(one('{ name: data, path: /srv, size: 1 }')[0]).toMatch(/Unknown key "?size"?/);
  expect(one('{ name: data, path: /a }, { name: data, path: /b }')).toEqual([
    'volumes[1].name: the name is given twice (volume data)',
  ]);
  expect(one('{ name: in, path: /a/b/c }, { name: out, path: /a/b, access: write }')).toEqual([
    'volumes[0].path: must not be inside the path of out, whose jobs could replace it by a link (volume in)',
  ]);
  for (const path of ['/a/b', '/a/bc', '/a'])
    expect(one(`{ name: in, path: ${path} }, { name: out, path: /a/b, access: write }`)).toEqual(
      [],
    );
});

test('the configuration reads the file, and reads it again', async () => {
  await using dir = await mkdtempDisposable(join(tmpdir(), 'loam-volumes-'));
  const file = join(dir.path, 'volumes.yml');
  const read = () => readConfig({ LOAM_VOLUMES: file }).volumes;
  expect(read).toThrow(/^LOAM_VOLUMES: .*ENOENT/);
  writeFileSync(file, 'volumes: [{ name: data }]');
  expect(read).toThrow(`LOAM_VOLUMES: the file has 1 mistake:\n  ${file}:1:`);
  writeFileSync(file, FILE);
  const volumes = read();
  expect(volumes.find('scratch')?.access).toBe('write');
  writeFileSync(file, 'volumes: 3');
  expect(() => volumes.reload()).toThrow('mistake');
  expect(volumes.current).toHaveLength(2);
  writeFileSync(file, 'volumes: []');
  volumes.reload();
  expect(volumes.current).toEqual([]);
  expect(readConfig({}).volumes.current).toEqual([]);
});
