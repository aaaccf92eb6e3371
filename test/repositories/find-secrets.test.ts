import { expect, test } from 'vitest';
import { findSecrets } from '../../src/repositories/pushes/secret-scanning/find.ts';
import { KINDS } from '../../src/repositories/pushes/secret-scanning/kinds.ts';
import { parseAddedLines } from '../../src/repositories/pushes/secret-scanning/scan.ts';

/** Joined at run time, so that secret scanners find nothing in this file. */
const live = (...parts: string[]) => parts.join('');

function kindsIn(text: string): string[] {
  const bytes = Buffer.from(text, 'latin1');
  return [...findSecrets(bytes, text)].filter((one) => one !== null).map(({ kind }) => kind);
}

const HEX = '0f1e2d3c4b5a69788796a5b4c3d2e1f0a1b2c3d4e5f60718';
const WORD = 'a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6A7b8C9d0E1f2G3h4I5j6K7l8M9n0';
const CAPS = 'Z7Q3M2X5K6W4T2PAB7D2F4H6J3L5N7Q2S4U6W3Y5A7C2E4G6I3K5M7O2Q4S6U3W5';

const SAMPLES: Record<string, string> = {
  'a token of a Loam job': live('loam_job', '_', `${WORD}${WORD}${WORD}`.slice(0, 90)),
  'a Loam access token': live('loam', '_pat_', WORD.slice(0, 46)),
  'a Loam worker token': live('loam_worker', '_', WORD.slice(0, 46)),
  'a secret of a Loam machine': live('loam_machine', '_', WORD.slice(0, 46)),
  'an AWS access key id': live('AKIA', CAPS.slice(0, 16)),
  'an AWS secret access key': live(
    'aws_secret_access_key = ',
    'wJalrXUtnFEMI/K7MDENG+bPxRfiCYzq8h2LmN4o',
  ),
  'a GitHub token': live('ghp', '_', WORD.slice(0, 36)),
  'a GitHub fine-grained token': live('github', '_pat_', WORD, '_1'),
  'a GitLab token': live('glpat', '-', 'x9Yz8Wv7Ut6Sr5Qp4On3'),
  'a Slack token': live('xoxb', '-123456789012-', 'aB3dE5fG7hI9'),
  'a Slack app token': live('xapp', '-1-A01B2C3D4E5-1234567890123-', HEX),
  'a Slack webhook': live(
    'https://hooks.',
    'slack.com/services/T01AB2CD3/B04EF5GH6/',
    WORD.slice(0, 24),
  ),
  'a Stripe live key': live('sk', '_live_', '51HxYz2AbC3dEf4GhI5jKl6M'),
  'a Google API key': live('AIza', 'SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q'),
  'a Google OAuth secret': live('GOCSPX', '-', WORD.slice(0, 28)),
  'a Hugging Face token': live('hf', '_', 'aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDe7gH'),
  'an OpenAI key': live('sk', '-proj-', WORD.slice(0, 30), 'T3BlbkFJ', WORD.slice(0, 30)),
  'an Anthropic key': live('sk', '-ant-api03-', WORD, WORD.slice(0, 15)),
  'a Groq key': live('gsk', '_', WORD.slice(0, 52)),
  'an xAI key': live('xai', '-', WORD),
  'a Replicate token': live('r8', '_', WORD.slice(0, 37)),
  'an npm token': live('npm', '_', WORD.slice(0, 36)),
  'a PyPI token': live('pypi', '-AgEIcHlwaS5vcmc', WORD),
  'a RubyGems key': live('rubygems', '_', HEX),
  'a Docker Hub token': live('dckr', '_pat_', WORD.slice(0, 27)),
  'a SendGrid key': live('SG', '.', WORD.slice(0, 22), '.', WORD.slice(0, 43)),
  'a Shopify token': live('shpat', '_', HEX.slice(0, 32)),
  'a DigitalOcean token': live('dop', '_v1_', HEX, HEX.slice(0, 16)),
  'a Vault token': live('hvs', '.', WORD, WORD.slice(0, 15)),
  'a Linear key': live('lin', '_api_', WORD.slice(0, 40)),
  'a Discord bot token': live('MTA4NjIx', 'ODM2NTk4NTYzMjQ3', '.GkX9_z.', WORD.slice(0, 38)),
  'a Discord webhook': live(
    'https://discord',
    '.com/api/webhooks/108621836598563247/',
    WORD.slice(0, 68),
  ),
  'a Telegram bot token': live('1234567890', ':AA', WORD.slice(0, 33)),
  'a Databricks token': live('dapi', HEX.slice(0, 32)),
  'a Grafana token': live('glsa', '_', WORD.slice(0, 32), '_0a1b2c3d'),
  'a New Relic key': live('NRAK', '-', CAPS.slice(0, 27)),
  'an Atlassian token': live('ATATT3', WORD, WORD, WORD.slice(0, 20), '=1A2B3C4D'),
  'a Notion token': live('ntn', '_', WORD.slice(0, 46)),
  'a Figma token': live('figd', '_', WORD.slice(0, 40)),
  'a PlanetScale token': live('pscale', '_tkn_', WORD.slice(0, 43)),
  'a Pulumi token': live('pul', '-', HEX.slice(0, 40)),
  'a Sentry token': live('sntrys', '_', WORD, WORD),
  'a Supabase token': live('sbp', '_', HEX.slice(0, 40)),
  'a Postman key': live('PMAK', '-', HEX.slice(0, 24), '-', HEX.slice(0, 34)),
  'a Tailscale key': live('tskey', '-auth-', 'kA1b2C3CNTRL-', WORD.slice(0, 32)),
  'an Airtable token': live('pat', WORD.slice(0, 14), '.', HEX, HEX.slice(0, 16)),
  'a Contentful token': live('CFPAT', '-', WORD.slice(0, 43)),
  'a Square token': live('sq0csp', '-', WORD.slice(0, 43)),
  'a Mailgun key': live('key', '-', HEX.slice(0, 32)),
  'a Mailchimp key': live(HEX.slice(0, 32), '-us', '12'),
  'an Azure storage key': live('AccountName=x;Account', 'Key=', WORD, '/+abcd', '=='),
  'a Doppler token': live('dp', '.pt.', WORD.slice(0, 43)),
  'an age key': live('AGE-SECRET', '-KEY-1', CAPS.slice(0, 58)),
  'a private key': live('-----BEGIN RSA PRIVATE', ' KEY-----\nMIIEpQIBAAKCAQEAz7MF4vhgXy'),
  'the password of a database': live(
    'postgres',
    '://app:',
    'h8Kq2-vTz9',
    '@db.prod.acme.io:5432/app',
  ),
  'a password in an address': live('https', '://deploy:', 'h8Kq2-vTz9', '@packages.acme.io/simple'),
};

test('every kind has a sample', () => {
  expect(Object.keys(SAMPLES)).toEqual(KINDS.map(({ name }) => name));
});

test.each(Object.entries(SAMPLES))('%s is found at any position', (kind, text) => {
  for (const around of [
    (inner: string) => inner,
    (inner: string) => `  token: "${inner}",\n`,
    (inner: string) => `${'let it = 1;\n'.repeat(999)}export KEY='${inner}'\n${'x\n'.repeat(99)}`,
    (inner: string) => `first\r\nKEY=${inner}\r\nlast\r\n`,
  ])
    expect(kindsIn(around(text))).toEqual([kind]);
});

test.each([
  live('AKIA', 'IOSFODNN7EXAMPLE'),
  live('ghp', '_', 'x'.repeat(36)),
  live('AKIA', 'short'),
  live('XAKIA', CAPS.slice(0, 16)),
  live('-----BEGIN PUBLIC', ' KEY-----\nMIIBIjANBgkqhkiG9w0BAQEF'),
  live("if (text.startsWith('-----BEGIN PRIVATE", " KEY-----')) return parse(text);"),
  'sk-learn, npm_config_cache, hf_hub_download, task-list-of-the-most-important-things-2',
  'postgres://postgres:postgres@localhost:5432/test',
  'postgres://app:h8Kq2-vTz9@db:5432/app',
  'mysql://user:password@mysql.acme.io/app',
  // biome-ignore lint/suspicious/noTemplateCurlyInString: it is a shell variable.
  'https://${USER}:${TOKEN}@github.com/acme/app.git',
  'https://user:pass@example.com/path',
  'https://x-access-token:<token>@github.com/acme/app',
  'http://127.0.0.1:8080/a:b@c',
  'mongodb+srv://root:randompassword@cluster0.ab1cd.mongodb.net',
  '"integrity": "sha512-a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6A7b8C9d0E1f2G3h4I5j6K7l8M9n0aQ=="',
  'aws_secret_access_key = da39a3ee5e6b4b0d3255bfef95601890afd80709',
  '',
])('%j is none', (text) => {
  expect(kindsIn(text)).toEqual([]);
});

test('no pattern is slow on text that repeats its beginning', () => {
  const begin = live('-----BEGIN PRIVATE', ' KEY-----\n');
  const texts = [
    ...Object.values(SAMPLES).flatMap((sample) =>
      [8, 24].map((n) => sample.slice(0, n).repeat(2_000)),
    ),
    ...['Version: ', 'Version: a\n', '\\n', '\\', 'DEK-Info: Version: \n'].map(
      (header) => `${begin}${header.repeat(70)}!`,
    ),
  ];
  for (const text of texts) {
    const begun = process.cpuUsage();
    for (const _ of findSecrets(Buffer.from(text, 'latin1'), text));
    // A thousand times the normal time: ambiguous patterns double their time per repetition.
    expect([text.slice(0, 40), process.cpuUsage(begun).user < 10e6]).toEqual([
      text.slice(0, 40),
      true,
    ]);
  }
});

test('text crafted from candidates is scanned in linear time', () => {
  for (const piece of [
    'xoxb-1-',
    'sk-',
    'AKIA',
    '://a:',
    'PRIVATE KEY-----\n',
    'M'.repeat(24),
    '0'.repeat(9),
    'a'.repeat(31),
  ])
    for (const between of ['', '.', ' ']) {
      const text = (piece + between).repeat(Math.ceil(2 ** 20 / (piece.length + between.length)));
      const begun = process.cpuUsage();
      let steps = 0;
      for (const _ of findSecrets(Buffer.from(text, 'latin1'), text)) steps++;
      const { user } = process.cpuUsage(begun);
      // A hundred times the normal time: quadratic growth would take hours.
      expect([piece, steps >= 0, user < 20e6]).toEqual([piece, true, true]);
    }
});

async function* lines(patch: string) {
  yield* patch.split('\n');
}

test('patch lines are counted, so that file contents cannot be mistaken for a header', async () => {
  const patch = `commit aaaa

diff --git a.txt a.txt
--- a.txt
+++ a.txt
@@ -1,2 +1,3 @@ context
--- removed
-two
+++ b/fake.txt
+@@ -1 +1 @@
+three
\\ No newline at end of file
@@ -9,0 +10 @@
+ten
commit bbbb

diff --cc m.txt
--- m.txt
+++ m.txt
@@@ -1,1 -1,2 +1,3 @@@
++evil
+ from the second
 +from the first
- gone`;
  const found = [];
  for await (const { commit, path, line, text } of parseAddedLines(lines(patch)))
    found.push(`${commit} ${path}:${line} ${text}`);
  expect(found).toEqual([
    'aaaa a.txt:1 ++ b/fake.txt',
    'aaaa a.txt:2 @@ -1 +1 @@',
    'aaaa a.txt:3 three',
    'aaaa a.txt:10 ten',
    'bbbb m.txt:1 evil',
  ]);
});
