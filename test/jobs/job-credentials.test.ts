/** Jobs as real processes that use their token and their identity tokens. */
import { networkInterfaces } from 'node:os';
import { decodeJwt } from 'jose';
import { expect, test } from 'vitest';
import { subtractNetworks } from '../../src/runners/public-addresses.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { startApp } from '../support/harness.ts';
import { needs } from '../support/needs.ts';
import { job, lines, submit, until, variables } from '../support/submit.ts';

const CREDENTIALS = {
  repo: 'ada/model',
  permissions: { repo: 'WRITE', jobs: 'READ' },
  idTokens: [{ variable: 'CLOUD_TOKEN', audience: 'sts.example.com' }],
};

test('git in a job uses its token for this server, and stores it nowhere', async (ctx) => {
  needs(ctx, 'bubblewrap', 'slirp4netns');
  const address = Object.values(networkInterfaces())
    .flatMap((own) => own ?? [])
    .find(({ family, internal }) => family === 'IPv4' && !internal)?.address;
  if (!address) return ctx.skip('this machine has no address beside its loopback');
  await using app = await startApp({
    config: { runner: 'process', host: address, jobNetwork: 'internet', jobAllow: [address] },
  });
  const ada = await app.user('ada');
  await ada.repository('ada/model');
  const command = `
    set -e
    # A helper of the image, which must not get the token, and a setting of the user.
    git config --global credential.helper 'store'
    git config user.name && git config user.email ada@example.com
    git fetch -q "$LOAM_URL/ada/model.git" main
    echo change > file && git add file && git commit -qm change
    git push -q "$LOAM_URL/ada/model.git" HEAD:refs/heads/result
    git ls-remote --heads "$LOAM_URL/ada/model.git" | wc -l
    grep -rqF -e "$LOAM_TOKEN" -e "$(printf 'job:%s' "$LOAM_TOKEN" | base64 -w 0)" . "$HOME" /tmp || echo "stored nowhere"
    echo "$LOAM_TOKEN"; printf 'job:%s' "$LOAM_TOKEN" | base64 -w 0; echo
    cat "$CLOUD_TOKEN_FILE"; echo
    [ "$CLOUD_TOKEN" = "$(cat "$CLOUD_TOKEN_FILE")" ] || echo renewed
    echo x 2>/dev/null >"$CLOUD_TOKEN_FILE" || echo "cannot be changed"
    echo "$CLOUD_TOKEN_FILE"`;
  const env = variables({
    GIT_CONFIG_COUNT: '1',
    GIT_CONFIG_KEY_0: 'user.name',
    GIT_CONFIG_VALUE_0: 'Ada',
  });
  await submit(ada, { namespace: 'ada', name: 'real', command, env, ...CREDENTIALS });
  await eventually(async () =>
    expect((await job(ada, 'ada', 'real')).status).toMatch(/SUCCEEDED|FAILED/),
  );
  const printed = await lines(ada, 'ada', 'real');
  expect(printed.filter((line) => line !== 'renewed')).toEqual([
    'Ada',
    '2',
    'stored nowhere',
    expect.stringMatching(/^loam_job_\w{26}\*\*\*$/),
    expect.stringMatching(/^[A-Za-z0-9]{40,60}\*\*\*=*$/),
    '***',
    'cannot be changed',
    '/run/loam/CLOUD_TOKEN',
  ]);
});

test('tokens of a job that outlives its server are renewed in the file, and its own token stays valid', async () => {
  const runner = fakeRunner();
  await using app = await startApp({ overrides: { runner } });
  const ada = await app.user('ada');
  await ada.repository('ada/model');
  await submit(ada, { namespace: 'ada', name: 'long', command: 'hold', ...CREDENTIALS });
  await until(ada, 'ada', 'long', 'RUNNING');
  const tokens = () => runner.running()[0]?.files.CLOUD_TOKEN ?? '';
  const { LOAM_TOKEN } = runner.running()[0]?.env ?? {};
  const first = decodeJwt(tokens());
  await app.restart();
  await eventually(() => expect(decodeJwt(tokens()).jti).not.toBe(first.jti));
  const { jti, iat, nbf, exp, ...claims } = first;
  expect(decodeJwt(tokens())).toMatchObject(claims);
  expect((await app.client(`Bearer ${LOAM_TOKEN}`).get('/ada/jobs')).status).toBe(200);
});

test('networks are removed from ranges around them', () => {
  expect(subtractNetworks(['10.0.0.0/30', '192.168.0.0/16'], ['10.0.0.2'])).toEqual([
    '10.0.0.0/31',
    '10.0.0.3/32',
    '192.168.0.0/16',
  ]);
  expect(subtractNetworks(['10.0.0.0/8', '10.1.0.0/16'], ['10.0.0.0/8'])).toEqual([]);
  expect(subtractNetworks(['240.0.0.0/4'], ['192.0.2.1', '255.255.255.255/32'])).toHaveLength(28);
  expect(subtractNetworks(['192.0.2.77/24'], [])).toEqual(['192.0.2.0/24']);
});
