/**
 * Renders the pages of the documentation to HTML when Loam is built, so that they need no server code and no script. The sources
 * are Markdown for readers of the repository, so links between them are paths of files, and anchors follow GitHub's rules.
 */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path/posix';
import GithubSlugger from 'github-slugger';
import { renderToStaticMarkup } from 'react-dom/server';
import { MarkdownAsync } from 'react-markdown';
import remarkGfm from 'remark-gfm';
import { highlight, languageNamed } from '../pages/repository/highlight.ts';

const ROOT = join(import.meta.dirname, '../../..');

/** Lists all pages, in the order of the navigation, and is the first page itself. */
const INDEX = 'docs/README.md';
/** Pages outside of `docs/`. */
const ROOT_PAGES = ['README.md', 'CHANGELOG.md', 'SECURITY.md'];

/** The address in examples and links of the sources. Links to it become links to the server that shows the page. */
const EXAMPLE_SERVER = 'http://127.0.0.1:3000';
/** Begins the examples that users paste. In these, the script shows the address of the server. */
const USER_EXAMPLE = `LOAM=${EXAMPLE_SERVER} `;
const OPERATOR_VARIABLE = /LOAM_(?:ADMIN_TOKEN|AGENT_URL)=/;

/** Addresses of the server which become links where the text names them. */
const SERVER_PATHS = new Set(['/docs', '/docs/api', '/graphql', '/openapi.json', '/openapi.yaml']);

export type Heading = { depth: number; text: string; id: string };
/** The text below one heading, for the search. */
export type Section = { page: string; heading: string; url: string; text: string };

export type Page = {
  /** Path on the server. */
  url: string;
  title: string;
  html: string;
  headings: Heading[];
  sections: Section[];
};

export type Documentation = {
  pages: Page[];
  groups: { title: string; entries: { title: string; url: string }[] }[];
  /** The colours of code, as classes: the content security policy allows no `style` attributes. */
  codeStyles: string;
};

/** @param pictureUrl the address on the server of a picture, by its path in the repository */
export async function renderDocumentation(
  pictureUrl: (path: string) => string,
): Promise<Documentation> {
  const colors = new CodeColors();
  const sources = [...globSync('docs/*.md', { cwd: ROOT }), ...ROOT_PAGES];
  const pages = await Promise.all(
    sources.map((source) => new PageRenderer(source, colors, pictureUrl).render()),
  );
  const groups = readGroups();
  const order = [urlOf(INDEX), ...groups.flatMap(({ entries }) => entries.map(({ url }) => url))];
  pages.sort((a, b) => order.indexOf(a.url) - order.indexOf(b.url));
  return { pages, groups, codeStyles: colors.css() };
}

/** The path of a page on the server, by its source; null for other files. */
function findUrl(source: string): string | null {
  const isPage = ROOT_PAGES.includes(source) || /^docs\/[^/]+\.md$/.test(source);
  return isPage ? urlOf(source) : null;
}

function urlOf(source: string): string {
  if (source === INDEX) return '/docs';
  return `/docs/${source
    .replace(/^docs\//, '')
    .replace(/\.md$/, '')
    .toLowerCase()}`;
}

function readGroups(): Documentation['groups'] {
  const text = readFileSync(join(ROOT, INDEX), 'utf8');
  return [...text.matchAll(/^## (.+)\n([^#]*)/gm)].map(([, title = '', list = '']) => ({
    title,
    entries: [...list.matchAll(/^- \[([^\]]+)\]\(([^)]+)\)/gm)].map(
      ([, title = '', path = '']) => ({
        title,
        url: urlOf(join('docs', path)),
      }),
    ),
  }));
}

/** A node of the syntax tree of HTML that react-markdown gives to its plugins. */
type Node = {
  type: string;
  tagName?: string;
  value?: string;
  properties?: Record<string, unknown>;
  children?: Node[];
};

class PageRenderer {
  readonly #source: string;
  readonly #colors: CodeColors;
  readonly #pictureUrl: (path: string) => string;
  readonly #slugger = new GithubSlugger();
  readonly #headings: Heading[] = [];
  readonly #sections: Section[] = [];

  constructor(source: string, colors: CodeColors, pictureUrl: (path: string) => string) {
    this.#source = source;
    this.#colors = colors;
    this.#pictureUrl = pictureUrl;
  }

  async render(): Promise<Page> {
    const element = await MarkdownAsync({
      children: readFileSync(join(ROOT, this.#source), 'utf8'),
      remarkPlugins: [remarkGfm],
      rehypePlugins: [() => (tree: Node) => this.#transform(tree)],
      // The only HTML in the sources are comments.
      skipHtml: true,
      urlTransform: (url) => url,
    });
    const html = renderToStaticMarkup(element);
    return {
      url: urlOf(this.#source),
      title: this.#headings[0]?.text ?? this.#source,
      html,
      headings: this.#headings,
      sections: this.#sections,
    };
  }

  async #transform(tree: Node): Promise<void> {
    for (const node of tree.children ?? []) {
      if (/^h\d$/.test(node.tagName ?? '')) this.#openSection(node);
      else this.#addText(node);
    }
    await this.#visit(tree);
  }

  #openSection(node: Node): void {
    const text = textOf(node);
    const id = this.#slugger.slug(text);
    const depth = Number(node.tagName?.slice(1));
    this.#headings.push({ depth, text, id });
    const page = this.#headings[0]?.text ?? text;
    const url = urlOf(this.#source) + (depth === 1 ? '' : `#${id}`);
    this.#sections.push({ page, heading: text, url, text: '' });
    node.properties = { ...node.properties, id };
    if (depth > 1)
      node.children?.push({
        type: 'element',
        tagName: 'a',
        properties: { href: `#${id}`, className: ['anchor'], ariaLabel: `Link to “${text}”` },
        children: [{ type: 'text', value: '#' }],
      });
  }

  #addText(node: Node): void {
    const section = this.#sections.at(-1);
    const text = textOf(node, ' ').replace(/\s+/g, ' ').trim();
    if (section && text) section.text += section.text ? ` ${text}` : text;
  }

  async #visit(node: Node): Promise<void> {
    const { tagName, properties = {} } = node;
    if (tagName === 'pre') return this.#highlight(node);
    for (const child of node.children ?? []) await this.#visit(child);
    if (tagName === 'a' && properties.className === undefined) this.#resolveLink(node);
    // Screen readers would announce a heading without a text.
    else if (tagName === 'th' && textOf(node) === '') node.tagName = 'td';
    else if (tagName === 'img') this.#resolvePicture(properties);
    else if (tagName === 'table') wrap(node, 'div', { className: ['sideways'], tabIndex: 0 });
    else if (tagName === 'code' && SERVER_PATHS.has(textOf(node)))
      wrap(node, 'a', { href: textOf(node) });
  }

  #resolveLink(node: Node): void {
    const href = String(node.properties?.href);
    const url = this.#serverUrl(href);
    // A file of the repository, which readers of a server do not have: only its name stays.
    if (url === null) Object.assign(node, { tagName: 'span', properties: {} });
    else node.properties = { ...node.properties, href: url };
  }

  /** @returns null for a file that is not a page */
  #serverUrl(href: string): string | null {
    if (href.startsWith(`${EXAMPLE_SERVER}/`)) return href.slice(EXAMPLE_SERVER.length);
    if (/^[a-z]+:/.test(href)) return href;
    const [path = '', hash] = href.split('#');
    const target = path === '' ? this.#source : join(this.#source, '..', path);
    const url = findUrl(target);
    return url && hash ? `${url}#${hash}` : url;
  }

  #resolvePicture(properties: Record<string, unknown>): void {
    const path = join(this.#source, '..', String(properties.src));
    Object.assign(properties, { src: this.#pictureUrl(path), loading: 'lazy' });
  }

  async #highlight(pre: Node): Promise<void> {
    pre.properties = { tabIndex: 0 };
    const [code] = pre.children ?? [];
    if (!code) return;
    const text = textOf(code).replace(/\n$/, '');
    const [name = ''] = [code.properties?.className ?? []].flat().map(String);
    const tokens = await highlight(languageNamed(name.replace('language-', '')), text);
    const lines = tokens ?? text.split('\n').map((content) => [{ content, htmlStyle: undefined }]);
    const isUserExample = text.includes(USER_EXAMPLE) && !OPERATOR_VARIABLE.test(text);
    code.properties = {};
    code.children = lines.flatMap((line, index) => [
      ...(index > 0 ? [{ type: 'text', value: '\n' }] : []),
      ...line.map(({ content, htmlStyle }) => ({
        type: 'element',
        tagName: 'span',
        properties: { className: this.#colors.classFor(htmlStyle) },
        children: isUserExample ? markServer(content) : [{ type: 'text', value: content }],
      })),
    ]);
  }
}

/** Encloses the address of the example server in an element that the script of the page finds. */
function markServer(content: string): Node[] {
  return content.split(EXAMPLE_SERVER).flatMap((part, index) => {
    const server: Node = {
      type: 'element',
      tagName: 'span',
      properties: { 'data-server': '' },
      children: [{ type: 'text', value: EXAMPLE_SERVER }],
    };
    return [...(index > 0 ? [server] : []), { type: 'text', value: part }];
  });
}

function wrap(node: Node, tagName: string, properties: Node['properties']): void {
  const inner = { ...node };
  Object.assign(node, { tagName, properties, children: [inner] });
}

/** @param separator between the texts of cells and list items, which have no white space between them */
function textOf({ tagName, value, children = [] }: Node, separator = ''): string {
  const text = value ?? children.map((child) => textOf(child, separator)).join('');
  return /^(?:td|th|li|p)$/.test(tagName ?? '') ? text + separator : text;
}

/** One class for each colour that the highlighter gives to a token. */
class CodeColors {
  readonly #classes = new Map<string, string>();

  classFor(style: string | Record<string, string> = {}): string[] {
    // The other properties are variables that only the default style sheet of the highlighter reads.
    const color = typeof style === 'string' ? undefined : style.color;
    if (!color) return [];
    const known = this.#classes.get(color) ?? `code-${this.#classes.size}`;
    this.#classes.set(color, known);
    return [known];
  }

  css(): string {
    return [...this.#classes].map(([color, name]) => `.${name}{color:${color}}\n`).join('');
  }
}
