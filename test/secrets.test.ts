import { expect, test } from 'vitest';
import { addedLines, findSecrets, secretIn } from '../src/repos/pushes/secret-scanning.ts';

/** Joined here, so that scanners find none of them in this file. */
const live = (...parts: string[]) => parts.join('');

test.each([
  ['an AWS access key id', live('AKIA', 'Z7Q3M2X5K6W4T2PA')],
  ['a GitHub token', live('ghp', '_', 'a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8')],
  ['a GitLab token', live('glpat', '-', 'x9Yz8Wv7Ut6Sr5Qp4On3')],
  ['a Slack token', live('xoxb', '-123456789012-', 'aB3dE5fG7hI9')],
  ['a Stripe live key', live('sk', '_live_', '51HxYz2AbC3dEf4GhI5jKl6M')],
  ['a Google API key', live('AIza', 'SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q')],
  ['a Hugging Face token', live('hf', '_', 'aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH')],
  ['a Loam access token', live('loam', '_pat_', 'a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3')],
  ['a private key', live('-----BEGIN RSA PRIVATE', ' KEY-----')],
])('%s is one', (name, text) => {
  expect(secretIn(`  token = "${text}";`)).toBe(name);
});

test.each([
  live('AKIA', 'IOSFODNN7EXAMPLE'),
  live('ghp', '_', 'x'.repeat(36)),
  live('AKIA', 'short'),
  live('-----BEGIN PUBLIC', ' KEY-----'),
  'sk-learn, npm_config_cache, hf_hub_download',
  '',
])('%j is none', (text) => {
  expect(secretIn(text)).toBeNull();
});

async function* lines(patch: string) {
  yield* patch.split('\n');
}

test('lines of a patch are counted off, so that no content passes for a header', async () => {
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
  for await (const { commit, path, line, text } of addedLines(lines(patch)))
    found.push(`${commit} ${path}:${line} ${text}`);
  expect(found).toEqual([
    'aaaa a.txt:1 ++ b/fake.txt',
    'aaaa a.txt:2 @@ -1 +1 @@',
    'aaaa a.txt:3 three',
    'aaaa a.txt:10 ten',
    'bbbb m.txt:1 evil',
  ]);
});

test('it stops at the first few', async () => {
  const secret = live('AKIA', 'Z7Q3M2X5K6W4T2PA');
  const patch = `commit a\n+++ x\n@@ -0,0 +1,50 @@\n${`+${secret}\n`.repeat(50)}`;
  expect(await findSecrets(lines(patch), 3)).toHaveLength(3);
});
