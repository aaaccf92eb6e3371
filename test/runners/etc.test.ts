/** Jobs see a copy of parts of /etc, which follows changes of /etc. */
import {
  chmod,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  readlink,
  rm,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { copyEtc } from '../../src/runners/process/etc.ts';

const PLACES = ['group', 'passwd', 'resolv.conf'];

test('the copy has the files that programs read, follows changes, and contains nothing else', async () => {
  const root = await mkdtemp(join(tmpdir(), 'loam-etc-'));
  const [etc, copy] = [join(root, 'etc'), join(root, 'copy')];
  await mkdir(join(etc, 'ssl/certs'), { recursive: true });
  await mkdir(join(etc, 'ssl/private'));
  await mkdir(join(etc, 'fonts/hidden'), { recursive: true });
  await mkdir(join(root, 'elsewhere'));
  await writeFile(join(etc, 'hosts'), 'one');
  await writeFile(join(etc, 'shadow'), 'secret');
  await writeFile(join(etc, 'ssl/private/key'), 'secret');
  await writeFile(join(etc, 'ssl/certs/ca.pem'), 'certificate', { mode: 0o640 });
  await symlink('/usr/share/ca.crt', join(etc, 'ssl/certs/link.pem'));
  await writeFile(join(etc, 'fonts/hidden/key'), 'secret');
  await writeFile(join(root, 'elsewhere/zone'), 'UTC');
  await symlink(join(root, 'elsewhere/zone'), join(etc, 'localtime'));
  const at = (name: string) => join(copy, name);
  const look = () => copyEtc(copy, (path) => path === join(etc, 'fonts/hidden'), etc);

  look();
  expect((await readdir(copy)).sort()).toEqual(
    ['fonts', 'hosts', 'localtime', 'ssl', ...PLACES].sort(),
  );
  expect(await readdir(at('ssl'))).toEqual(['certs']);
  expect(await readdir(at('fonts'))).toEqual([]);
  expect(await readFile(at('ssl/certs/ca.pem'), 'utf8')).toBe('certificate');
  // A link at the top level is followed, because its target may be hidden from jobs; links below it are copied as links.
  expect(await readFile(at('localtime'), 'utf8')).toBe('UTC');
  expect(await readlink(at('ssl/certs/link.pem'))).toBe('/usr/share/ca.crt');

  await writeFile(join(etc, 'hosts'), 'another');
  await chmod(join(etc, 'ssl/certs/ca.pem'), 0o600);
  await rm(join(etc, 'ssl/certs/link.pem'));
  await mkdir(join(etc, 'ssl/certs/link.pem'));
  await rm(join(etc, 'fonts'), { recursive: true });
  await writeFile(join(etc, 'fonts'), 'no folder any more');
  await writeFile(at('shadow'), 'left by a version that showed it');
  look();
  look();
  expect(await readFile(at('hosts'), 'utf8')).toBe('another');
  expect((await readdir(copy)).sort()).toEqual(
    ['fonts', 'hosts', 'localtime', 'ssl', ...PLACES].sort(),
  );
  expect((await readdir(at('ssl/certs'))).sort()).toEqual(['ca.pem', 'link.pem']);
  expect(await readdir(at('ssl/certs/link.pem'))).toEqual([]);
  expect(await readFile(at('fonts'), 'utf8')).toBe('no folder any more');
  await rm(root, { recursive: true });
});

test('a removed part is removed from the copy', async () => {
  const root = await mkdtemp(join(tmpdir(), 'loam-etc-'));
  const [etc, copy] = [join(root, 'etc'), join(root, 'copy')];
  await mkdir(join(etc, 'fonts/conf.d'), { recursive: true });
  copyEtc(copy, () => false, etc);
  await rm(join(etc, 'fonts'), { recursive: true });
  copyEtc(copy, () => false, etc);
  expect((await readdir(copy)).sort()).toEqual(PLACES);
  await rm(root, { recursive: true });
});
