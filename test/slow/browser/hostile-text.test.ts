/**
 * Text from users, jobs, webhook receivers and URLs stays text: each page that shows it shows it unchanged, and it creates
 * no elements and runs no scripts.
 */
import { generateKeyPairSync } from 'node:crypto';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { openBrowser, visit } from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { submit, submitRaw, until, variables } from '../../support/submit.ts';
import {
  type Authority,
  makeAuthority,
  type Receiver,
  startReceiver,
} from '../../support/webhook-receiver.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;
let repository: string;
let authority: Authority;
let receiver: Receiver;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  authority = await makeAuthority();
  receiver = await startReceiver(authority);
  app = await startApp({
    config: {
      runner: 'process',
      webhooks: { allow: ['127.0.0.0/8'], authorities: authority.file },
    },
  });
  ada = await app.user('ada');
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'code' });
  repository = body.id;
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
  await receiver?.[Symbol.asyncDispose]();
  await authority?.[Symbol.asyncDispose]();
});

/** Differs for each use, so that a test knows which text a page shows. */
const script = (place: string) => `<img src=x alt="${place}" onerror="window.hit=1">`;
/** Branch names cannot contain spaces. Browsers accept slashes as separators of attributes too. */
const ref = (place: string) => `<img/src=x/alt=${place}/onerror=window.hit=1>`;

const SELECTIONS: Record<string, string> = {
  createBranch: 'repository { id }',
  createTag: 'repository { id }',
  createCommit: 'commit { sha }',
  setBranchRule: 'repository { id }',
  lockLfsFile: 'lock { id }',
  addSshKey: 'sshKey { id }',
  addDeployKey: 'deployKey { id }',
  createAccessToken: 'accessToken { id }',
};

async function act(mutation: string, input: object) {
  const type = `${mutation[0]?.toUpperCase()}${mutation.slice(1)}Input`;
  const query = `mutation ($input: ${type}!) { ${mutation}(input: $input) { ${SELECTIONS[mutation]} } }`;
  return (await ada.gql(query, { input }))[mutation];
}

/** Opens each page and expects the texts on it unchanged. */
async function expectTexts(page: Page, pages: Record<string, readonly string[]>): Promise<void> {
  for (const [path, texts] of Object.entries(pages)) {
    await page.goto(path);
    for (const text of texts)
      await expect
        .poll(() => page.getByText(text).count(), { message: `${path}: ${text}` })
        .toBeGreaterThan(0);
    await expectHarmless(page, path);
  }
}

async function expectHarmless(page: Page, path: string): Promise<void> {
  const made =
    'img[src=x], [onerror], main script, main style, main iframe, a[href^="javascript:" i]';
  expect(await page.locator(made).count(), path).toBe(0);
  expect(await page.evaluate(() => 'hit' in window), path).toBe(false);
}

const SVG = 'xmlns="http://www.w3.org/2000/svg"';

/** Formulas with links, images, attributes and endless recursion, and a language named like a property of every object. */
const MARKDOWN = `
$$\\href{javascript:window.hit=1}{press}$$

$$\\htmlData{x=y}{a} \\htmlStyle{background:url(https://example.com/)}{b}$$

$$\\includegraphics{https://example.com/x.png}$$

$$\\def\\a{\\a\\a}\\a$$

$$\\text{${script('formula')}}$$

\`\`\`constructor
${script('in a block')}
\`\`\`

<pre><code class="language-math">\\url{javascript:window.hit=1}</code></pre>

<math><mtext><img src=x onerror="window.hit=1"></mtext></math>

<svg onload="window.hit=1"><style>@import "https://example.com/x.css"</style></svg>

<svg><input>text in a void element</input><img><input>text in two void elements</input></img><br>x</br></svg>

the end of the guide
`;

const NOTEBOOK = JSON.stringify({
  nbformat: 4,
  metadata: { language_info: { name: '__proto__' } },
  cells: [
    { cell_type: 'markdown', source: [script('cell'), '\n\n[press](javascript:window.hit=1)'] },
    {
      cell_type: 'code',
      source: script('source'),
      outputs: [
        { output_type: 'stream', text: script('output') },
        { output_type: 'display_data', data: { 'text/html': script('html') } },
        { output_type: 'display_data', data: { 'image/png': 'x" onerror="window.hit=1' } },
        {
          output_type: 'display_data',
          data: { 'image/svg+xml': script('svg'), 'application/javascript': 'window.hit=1' },
        },
        { output_type: 'error', traceback: [script('error')] },
      ],
    },
  ],
});

const TIMEOUT_MS = 180_000;

test(
  'content of a repository',
  async () => {
    const id = repository;
    const folder = ref('folder').replaceAll('/', ' ');
    const { commit } = await act('createCommit', {
      id,
      branch: 'main',
      message: `${script('subject')}\n\n${script('body')}`,
      changes: [
        { path: `${folder}/deep.txt`, content: script('in a folder') },
        {
          path: `${script('file')}.md`,
          content: `# ${script('heading')}\n\n\`\`\`${script('language')}\nx\n\`\`\`\n`,
        },
        { path: 'data.csv', content: script('content') },
        { path: 'guide.md', content: MARKDOWN },
        { path: 'study.ipynb', content: NOTEBOOK },
        { path: 'picture.svg', content: `<svg ${SVG} onload="window.hit=1"><text>x</text></svg>` },
      ],
    });
    await act('createBranch', { id, name: ref('branch'), from: 'main' });
    await act('createCommit', {
      id,
      branch: ref('branch'),
      message: script('on the branch'),
      changes: [{ path: 'data.csv', content: script('changed') }],
    });
    await act('createTag', { id, name: ref('tag'), from: 'main', message: script('annotation') });
    await act('setBranchRule', { id, pattern: ref('rule') });
    await act('lockLfsFile', { repositoryId: id, path: script('locked') });
    await ada.gql(
      'mutation ($input: UpdateRepositoryInput!) { updateRepository(input: $input) { repository { id } } }',
      { input: { id, description: script('description') } },
    );

    await using visitor = await visit(browser, app, { as: ada });
    const asked: string[] = [];
    visitor.context.on('request', (request) => asked.push(request.url()));
    const branch = encodeURIComponent(ref('branch'));
    await expectTexts(visitor.page, {
      '/ada': [script('description')],
      '/ada/code': [script('description'), script('subject'), `${script('file')}.md`, folder],
      [`/ada/code/tree/${encodeURIComponent(folder)}`]: ['deep.txt', folder],
      [`/ada/code/file/${encodeURIComponent(`${script('file')}.md`)}`]: [`${script('file')}.md`],
      '/ada/code/file/data.csv': [script('content')],
      '/ada/code/file/data.csv?view=code': [script('content')],
      '/ada/code/file/data.csv?view=blame': [script('subject'), script('content')],
      '/ada/code/file/guide.md': [
        'the end of the guide',
        'text in a void element',
        'text in two void elements',
        script('in a block'),
      ],
      '/ada/code/file/study.ipynb': [script('source'), script('output'), script('error')],
      '/ada/code/file/picture.svg': ['picture.svg'],
      '/ada/code/commits': [script('subject')],
      [`/ada/code/commits?ref=${branch}`]: [script('on the branch')],
      [`/ada/code/commit/${commit.sha}`]: [script('body'), script('content')],
      [`/ada/code/compare?base=main&head=${branch}`]: [script('changed')],
      '/ada/code/branches': [ref('branch')],
      '/ada/code/tags': [ref('tag'), script('annotation')],
      '/ada/code/settings': [ref('rule')],
      '/ada/code/large-files': [script('locked')],
      [`/ada/code/search?q=${encodeURIComponent('<img src=x')}`]: [script('content')],
      [`/ada/code/search?q=${encodeURIComponent('(.*)+$')}`]: ['No matches'],
    });
    expect(asked.filter((url) => !url.startsWith(app.base) && !url.startsWith('data:'))).toEqual(
      [],
    );
  },
  TIMEOUT_MS,
);

test(
  'input, output, artifacts and failures of a job',
  async () => {
    const address = `https://example.com/${ref('address')}`;
    const svg = `<svg ${SVG} onload="window.hit=1"><script>window.hit=1</script></svg>`;
    const out = `echo '${svg}' > out/x.svg; echo '${svg}' > out/x.txt; mkdir -p 'out/${ref('directory').replaceAll('/', ' ')}'; echo x > 'out/${script('artifact').replaceAll('/', ' ')}'`;
    await submit(ada, {
      namespace: 'ada',
      name: 'printing',
      repo: 'ada/code',
      branch: ref('branch'),
      command: `echo '${script('printed')}'; echo '${script('complained')}' >&2; echo '${address}'; mkdir -p out; ${out}`,
      outputPath: 'out',
    });
    await until(ada, 'ada', 'printing', 'SUCCEEDED');
    await act('createBranch', { id: repository, name: ref('missing'), from: 'main' });
    await submit(ada, {
      namespace: 'ada',
      name: 'astray',
      repo: 'ada/code',
      branch: ref('missing'),
      command: `echo '${script('said')}'; exit 1`,
    });
    await until(ada, 'ada', 'astray', 'FAILED');
    await using visitor = await visit(browser, app, { as: ada });
    const { page } = visitor;
    await expectTexts(page, {
      '/ada/-/jobs/printing': [
        script('printed'),
        script('complained'),
        script('artifact'),
        ref('branch'),
      ],
      '/ada/-/jobs/astray': [ref('missing')],
    });
    await page.goto('/ada/-/jobs/printing');
    // The link ends before the characters of the element.
    const link = page
      .getByRole('log')
      .getByRole('link', { name: 'https://example.com/', exact: true });
    expect(await link.getAttribute('href')).toBe('https://example.com/');
    for (const name of ['x.svg', 'x.txt'])
      await page.getByRole('button', { name: `Preview ${name}` }).click();
    await page.getByRole('region', { name: 'Preview of x.txt' }).getByText(svg).waitFor();
    await page.getByRole('img', { name: 'x.svg', exact: true }).waitFor();
    await expectHarmless(page, page.url());
    // Fields that accept names only refuse scripts.
    const refused = { namespace: 'ada', name: 'refused', repo: 'ada/code', command: 'true' };
    for (const [field, more] of [
      ['name', { name: script('name') }],
      ['labels', { labels: [{ key: script('key'), value: '' }] }],
      ['labels', { labels: [{ key: 'key', value: script('value') }] }],
      ['env', { env: [{ name: script('variable'), value: '' }] }],
      ['secrets', { secrets: [{ name: script('secret'), value: '' }] }],
    ] as const) {
      const { errors } = await submitRaw(ada, { ...refused, ...more });
      expect(errors?.[0]?.message, JSON.stringify(more)).toContain(field);
    }
    await page.goto(`/new/job?name=${encodeURIComponent(script('name'))}`);
    await page.getByRole('heading', { name: 'New job' }).waitFor();
    await expectHarmless(page, page.url());
  },
  TIMEOUT_MS,
);

test(
  'summaries and tests of a job',
  async () => {
    const xml = `<testsuite name="s"><testcase name="${script('test').replace(/[<>"]/g, (c) => `&#${c.charCodeAt(0)};`)}">
      <failure message="m"><![CDATA[${script('details')}]]></failure></testcase></testsuite>`;
    const summaries = {
      written: `printf '%s' "$TEXT" > "$JOB_SUMMARY"; printf '%s' "$XML" > r.xml`,
      // Deeper than the preview can show.
      nested: `printf '> %.0s' $(seq 4000) > "$JOB_SUMMARY"`,
      linked: `for n in $(seq 250); do echo "[file $n](f$n) ![image $n](i$n)" >> "$JOB_SUMMARY"; done`,
    };
    for (const [name, command] of Object.entries(summaries))
      await submit(ada, {
        ...{ namespace: 'ada', name, repo: 'ada/code', command },
        env: variables({ TEXT: `${script('summary')}\n${MARKDOWN}`, XML: xml }),
        testReports: ['r.xml'],
      });
    for (const name of Object.keys(summaries)) await until(ada, 'ada', name, 'SUCCEEDED');
    await using visitor = await visit(browser, app, { as: ada });
    const { page } = visitor;
    await expectTexts(page, {
      '/ada/-/jobs/written': ['the end of the guide', script('test')],
    });
    await page.goto('/ada/-/jobs/nested');
    await page.getByText('The preview could not be shown').waitFor();
    await page.getByRole('heading', { name: 'nested' }).waitFor();
    const lookups = new Set<string>();
    page.on('request', (request) => {
      const body = request.postData() ?? '';
      if (body.includes('SummaryFile')) lookups.add(JSON.parse(body).variables.path);
    });
    await page.goto('/ada/-/jobs/linked');
    await page.getByText('image 250').waitFor();
    await expect.poll(() => lookups.size).toBeGreaterThanOrEqual(100);
    expect(lookups.size).toBe(100);
  },
  TIMEOUT_MS,
);

test(
  'names of keys, tokens, sessions and webhooks, and responses of receivers',
  async () => {
    const line = `ssh-ed25519 ${sshKey()} ${script('comment')}`;
    await act('addSshKey', { title: script('key'), key: line });
    await act('addDeployKey', {
      repositoryId: repository,
      title: script('deploy key'),
      key: `ssh-ed25519 ${sshKey()}`,
    });
    await act('createAccessToken', { name: script('token') });
    await fetch(`${app.base}/login`, {
      method: 'POST',
      redirect: 'manual',
      headers: { origin: app.base, 'user-agent': script('browser') },
      body: new URLSearchParams({ token: ada.token as string }),
    });
    receiver.answer = (response) => void response.writeHead(500).end(script('answer'));
    const { body: hook } = await ada.post('/auth/v1/seed/webhooks', {
      name: script('webhook'),
      url: `${receiver.url}/${encodeURI(script('url'))}?<img>`,
      event_types: ['job.completed'],
      namespaces: ['ada'],
    });
    await using visitor = await visit(browser, app, { as: ada });
    const { page } = visitor;
    await expectTexts(page, {
      '/settings/ssh-keys': [script('key')],
      '/ada/code/settings': [script('deploy key')],
      '/settings/tokens': [script('token')],
      '/settings/sessions': [script('browser')],
      '/ada/-/webhooks': [script('webhook'), encodeURI(script('url'))],
      [`/ada/-/webhooks/${hook.id}`]: [script('webhook'), encodeURI(script('url'))],
      '/ada/-/activity?log=audit': [script('webhook'), script('deploy key')],
    });
    await page.goto(`/ada/-/webhooks/${hook.id}`);
    await page.locator('[data-live=live]').waitFor();
    await page.getByRole('button', { name: 'Send test' }).click();
    const delivery = page.locator('[data-event=PING]');
    await delivery.getByRole('button', { name: 'ping', exact: true }).click();
    await delivery.getByText(script('answer')).first().waitFor();
    await expectHarmless(page, page.url());
  },
  TIMEOUT_MS,
);

test(
  'URLs',
  async () => {
    await using visitor = await visit(browser, app, { as: ada });
    const { page } = visitor;
    const evil = encodeURIComponent(script('address'));
    for (const path of [
      `/${evil}`,
      `/ada/${evil}`,
      `/ada/code/file/${evil}`,
      `/ada/code/commit/${evil}`,
      `/ada/code/tree/x?ref=${evil}`,
      `/ada/code/compare?base=${evil}&head=${evil}`,
      `/ada/code/search?q=${evil}`,
      `/ada/-/jobs/${evil}`,
      `/ada/-/jobs?status=${evil}&label=${evil}&after=${evil}`,
      `/ada/-/webhooks/${evil}`,
      `/new/repository?name=${evil}&namespace=${evil}`,
      `/login?to=${evil}&error=${evil}&error_description=${evil}`,
      `/login/device?user_code=${evil}`,
      `/login/oidc/callback?error=${evil}&error_description=${evil}&state=${evil}`,
      `/login/link?secret=${evil}`,
      `/admin/-/jobs/${evil}#${evil}`,
    ]) {
      await page.goto(path);
      // Every page has a heading or an alert. Plain responses of the server may be text only.
      await expect
        .poll(() => page.locator('h1, h2, pre, [role=alert]').count(), { message: path })
        .toBeGreaterThan(0);
      await expect.poll(() => page.getByRole('status', { name: 'Loading' }).count()).toBe(0);
      await expectHarmless(page, path);
      expect(new URL(page.url()).origin, path).toBe(app.base);
    }
  },
  TIMEOUT_MS,
);

/** An OpenSSH public key, base64-encoded. */
function sshKey(): string {
  const { publicKey } = generateKeyPairSync('ed25519');
  const raw = publicKey.export({ format: 'der', type: 'spki' }).subarray(-32);
  const part = (bytes: Buffer) => {
    const size = Buffer.alloc(4);
    size.writeUInt32BE(bytes.length);
    return Buffer.concat([size, bytes]);
  };
  return Buffer.concat([part(Buffer.from('ssh-ed25519')), part(raw)]).toString('base64');
}
