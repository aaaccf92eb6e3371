/**
 * Renders Markdown from users. HTML is sanitized with GitHub's allowlist, which removes scripts, styles and forms, and nothing
 * loads from other hosts. Highlighting, formulas and diagrams come after sanitizing, so they are built from plain text only.
 */
import { Link } from '@tanstack/react-router';
import { type ComponentProps, Fragment, type ReactNode } from 'react';
import ReactMarkdown from 'react-markdown';
import rehypeRaw from 'rehype-raw';
import rehypeSanitize from 'rehype-sanitize';
import remarkGfm from 'remark-gfm';
import remarkMath from 'remark-math';
import { graphql } from '../../graphql/graphql.ts';
import { useRetryingQuery } from '../../ui/load.tsx';
import { Diagram } from './diagram.tsx';
import { Formula } from './formula.tsx';
import { languageNamed } from './highlight.ts';
import { HighlightedLine, useTokens } from './tokens.tsx';

const ImageQuery = graphql(`
  query ReadmeImage($namespace: String!, $name: String!, $path: String!, $ref: String) {
    repository(namespace: $namespace, name: $name) {
      id
      file(path: $path, ref: $ref) { rawUrl }
    }
  }
`);

/** `linkRef`: the ref in the URL, which links keep; `revision`: the same, or the default branch. */
type Source = { namespace: string; repository: string; linkRef?: string; revision: string };
export type MarkdownProps = Source & { text: string; path: string };

export default function Markdown({ text, path, ...source }: MarkdownProps) {
  return (
    <div className="markdown min-w-0 break-words">
      <ReactMarkdown
        remarkPlugins={[remarkGfm, remarkMath, [remarkDollars, text]]}
        rehypePlugins={[rehypeRaw, rehypeSanitize, rehypeVoid]}
        components={{
          a: ({ node: _, href = '', children, ...rest }) => (
            <RelativeLink {...source} from={path} href={href} {...rest}>
              {children}
            </RelativeLink>
          ),
          img: ({ src, alt }) => (
            <Image {...source} from={path} src={String(src ?? '')} alt={alt ?? ''} />
          ),
          pre: ({ node, children }) => {
            const block = node && blockOf(node);
            if (!block) return <Block>{children}</Block>;
            if (block.language === 'math') return <Formula text={block.text} isBlock />;
            if (block.language === 'mermaid')
              return (
                // The key remounts the diagram when its source changes.
                <Diagram key={block.text} source={block.text}>
                  <CodeBlock {...block} />
                </Diagram>
              );
            return <CodeBlock {...block} />;
          },
          code: ({ node, children }) => {
            const isFormula = node && languagesOf(node).includes('math');
            return isFormula ? <Formula text={textOf(node)} /> : <code>{children}</code>;
          },
          // The page title is the only first-level heading.
          h1: ({ node: _, children }) => <h2 className="!text-2xl">{children}</h2>,
          h2: ({ node: _, children }) => <h3 className="!text-xl">{children}</h3>,
          h3: ({ node: _, children }) => <h4>{children}</h4>,
          h4: ({ node: _, children }) => <h5>{children}</h5>,
          h5: ({ node: _, children }) => <h6>{children}</h6>,
        }}
      >
        {text}
      </ReactMarkdown>
    </div>
  );
}

type HtmlNode = {
  type: string;
  value?: string;
  children?: HtmlNode[];
  tagName?: string;
  properties?: { className?: unknown };
};

function textOf({ value, children = [] }: HtmlNode): string {
  return value ?? children.map(textOf).join('');
}

/** Languages of a code element, from its classes `language-…`. */
function languagesOf({ properties }: HtmlNode): string[] {
  return [properties?.className ?? []]
    .flat()
    .flatMap((name) => /^language-(.+)/.exec(String(name))?.[1] ?? []);
}

/** The code of a `<pre>` that contains one `<code>` of plain text and nothing else. */
function blockOf({ children = [] }: HtmlNode): { text: string; language?: string } | null {
  const [code, ...more] = children;
  if (code?.tagName !== 'code' || more.length > 0) return null;
  if (code.children?.some(({ type }) => type !== 'text')) return null;
  return { text: textOf(code).replace(/\n$/, ''), language: languagesOf(code)[0] };
}

function Block({ children }: { children: ReactNode }) {
  // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable with the keyboard.
  return <pre tabIndex={0}>{children}</pre>;
}

export function CodeBlock({ text, language }: { text: string; language?: string }) {
  const tokens = useTokens(language && languageNamed(language), text);
  return (
    <Block>
      <code>
        {text.split('\n').map((line, index, { length }) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the lines of a text are never reordered.
          <Fragment key={index}>
            {line && <HighlightedLine text={line} tokens={tokens?.[index]} />}
            {index < length - 1 && '\n'}
          </Fragment>
        ))}
      </code>
    </Block>
  );
}

/** Elements that cannot have children: React throws an error for one that has. */
const VOID_ELEMENTS = new Set(
  'area base br col embed hr img input link meta source track wbr'.split(' '),
);

/** Moves children of void elements behind them: in `<svg>`, where HTML's rules do not apply, parsers accept such children. */
function rehypeVoid() {
  return function transform(node: HtmlNode): void {
    if (!node.children) return;
    for (const child of node.children) transform(child);
    node.children = node.children.flatMap((child) =>
      VOID_ELEMENTS.has(child.tagName ?? '')
        ? [child, ...(child.children?.splice(0) ?? [])]
        : child,
    );
  };
}

type TextNode = {
  type: string;
  value?: string;
  data?: unknown;
  children?: TextNode[];
  position?: { start: { offset?: number }; end: { offset?: number } };
};

/**
 * Applies GitHub's rules for `$`, so that "$5 and $10" is not a formula: the opening dollar must not be followed by a space,
 * and the closing dollar must not follow a space or precede a letter or digit. A paragraph that consists of one formula
 * between `$$` becomes a block.
 */
function remarkDollars(source: string) {
  return function transform(node: TextNode): void {
    const { start, end } = node.position ?? {};
    const text = source.slice(start?.offset, end?.offset);
    if (node.type === 'inlineMath' && /^\$[^$]/.test(text)) {
      const isClosed = !/^\w/.test(source.slice(end?.offset, (end?.offset ?? 0) + 1));
      if (!isClosed || /^\$\s|\s\$$/.test(text))
        Object.assign(node, { type: 'text', value: text, data: undefined });
    }
    const [only, ...more] = node.children ?? [];
    if (
      node.type === 'paragraph' &&
      only?.type === 'inlineMath' &&
      more.length === 0 &&
      source.startsWith('$$', only.position?.start.offset)
    ) {
      delete node.children;
      Object.assign(node, blockMath(only));
    }
    for (const child of node.children ?? []) transform(child);
  };
}

/** The node that remark-math creates for a formula between lines of `$$`. */
function blockMath({ value = '' }: TextNode) {
  const code = {
    type: 'element',
    tagName: 'code',
    properties: { className: ['language-math', 'math-display'] },
    children: [{ type: 'text', value }],
  };
  return { type: 'math', value, data: { hName: 'pre', hChildren: [code] } };
}

/** The path in the repository that a link or image refers to, or null if it leads elsewhere. */
function resolvePath(from: string, href: string): string | null {
  if (/^[a-z][a-z0-9+.-]*:|^\/\//i.test(href)) return null;
  const base = `http://repository/${href.startsWith('/') ? '' : from}`;
  if (!URL.canParse(href, base)) return null;
  try {
    return decodeURIComponent(new URL(href, base).pathname.slice(1));
  } catch {
    return null;
  }
}

/** The path of a badge of this server; null for every other address. */
function badgePath(src: string): string | null {
  if (!URL.canParse(src)) return null;
  const { origin, pathname, search } = new URL(src);
  const isBadge = /^\/[^/]+\/[^/]+\/-\/badge\.svg$/.test(pathname);
  return isBadge && origin === location.origin ? pathname + search : null;
}

function RelativeLink({
  namespace,
  repository,
  linkRef,
  from,
  href,
  children,
}: Omit<Source, 'revision'> & { from: string } & Pick<ComponentProps<'a'>, 'href' | 'children'>) {
  const path = href && !href.startsWith('#') ? resolvePath(from, href) : null;
  if (path !== null)
    return (
      <Link
        to={
          href?.endsWith('/') || path === ''
            ? '/$namespace/$repository/tree/$'
            : '/$namespace/$repository/file/$'
        }
        params={{ namespace, repository, _splat: path.replace(/\/$/, '') }}
        search={{ ref: linkRef }}
      >
        {children}
      </Link>
    );
  return (
    <a href={href} rel="nofollow noreferrer noopener">
      {children}
    </a>
  );
}

/** Shows images of the repository and badges. An image on another host becomes a link: loading it would expose the reader. */
function Image({
  namespace,
  repository,
  revision,
  from,
  src,
  alt,
}: Source & { from: string; src: string; alt: string }) {
  const path = resolvePath(from, src);
  const asked = useRetryingQuery({
    query: ImageQuery,
    variables: { namespace, name: repository, path: path ?? '', ref: revision },
    pause: path === null,
  });
  const badge = badgePath(src);
  if (badge !== null) return <img src={badge} alt={alt} className="inline max-w-full" />;
  if (path === null)
    return /^https?:/i.test(src) ? (
      <a href={src} rel="nofollow noreferrer noopener">
        {alt || 'image'}
      </a>
    ) : (
      <span className="text-dim">{alt}</span>
    );
  const url = asked.data?.repository?.file?.rawUrl;
  return url ? (
    <img
      src={new URL(url).pathname + new URL(url).search}
      alt={alt}
      className="inline max-w-full"
    />
  ) : (
    <span className="text-dim">{alt}</span>
  );
}
