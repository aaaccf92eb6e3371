/**
 * Markdown of users. HTML in it is cleaned by a list of what is allowed (GitHub's), so that no script, style or form gets
 * through, and nothing is loaded from other hosts. What is made after that, colours, formulas and diagrams, is made of text alone.
 */
import { Link } from '@tanstack/react-router';
import { type ComponentProps, Fragment, type ReactNode } from 'react';
import ReactMarkdown from 'react-markdown';
import rehypeRaw from 'rehype-raw';
import rehypeSanitize from 'rehype-sanitize';
import remarkGfm from 'remark-gfm';
import remarkMath from 'remark-math';
import { graphql } from '../../graphql/graphql.ts';
import { useAsk } from '../../ui/load.tsx';
import { Diagram } from './diagram.tsx';
import { Formula } from './formula.tsx';
import { languageNamed } from './highlight.ts';
import { Line, useTokens } from './tokens.tsx';

const ImageQuery = graphql(`
  query ReadmeImage($namespace: String!, $name: String!, $path: String!, $ref: String) {
    repository(namespace: $namespace, name: $name) {
      id
      file(path: $path, ref: $ref) { rawUrl }
    }
  }
`);

/** `at`: the ref of the address, which links keep; `revision`: what is shown. */
type Place = { namespace: string; repository: string; at?: string; revision: string };
export type MarkdownOf = Place & { text: string; path: string };

export default function Markdown({ text, path, ...place }: MarkdownOf) {
  return (
    <div className="markdown min-w-0 break-words">
      <ReactMarkdown
        remarkPlugins={[remarkGfm, remarkMath, [remarkDollars, text]]}
        rehypePlugins={[rehypeRaw, rehypeSanitize]}
        components={{
          a: ({ node: _, href = '', children, ...rest }) => (
            <RelativeLink {...place} from={path} href={href} {...rest}>
              {children}
            </RelativeLink>
          ),
          img: ({ src, alt }) => (
            <Image {...place} from={path} src={String(src ?? '')} alt={alt ?? ''} />
          ),
          pre: ({ node, children }) => {
            const block = node && blockOf(node);
            if (!block) return <Block>{children}</Block>;
            if (block.language === 'math') return <Formula text={block.text} isBlock />;
            if (block.language === 'mermaid')
              return (
                // With a key: another source is another diagram.
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
          // A page has one heading of the first level, and it is not the README's.
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

/** What Markdown or HTML says of the language: classes `language-…`. */
function languagesOf({ properties }: HtmlNode): string[] {
  return [properties?.className ?? []]
    .flat()
    .flatMap((name) => /^language-(.+)/.exec(String(name))?.[1] ?? []);
}

/** The code of a `<pre>`, where that is all that is in it. */
function blockOf({ children = [] }: HtmlNode): { text: string; language?: string } | null {
  const [code, ...more] = children;
  if (code?.tagName !== 'code' || more.length > 0) return null;
  if (code.children?.some(({ type }) => type !== 'text')) return null;
  return { text: textOf(code).replace(/\n$/, ''), language: languagesOf(code)[0] };
}

function Block({ children }: { children: ReactNode }) {
  // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable with the keyboard.
  return <pre tabIndex={0}>{children}</pre>;
}

export function CodeBlock({ text, language }: { text: string; language?: string }) {
  const tokens = useTokens(language && languageNamed(language), text);
  return (
    <Block>
      <code>
        {text.split('\n').map((line, at, { length }) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the lines of a text never move.
          <Fragment key={at}>
            {line && <Line text={line} tokens={tokens?.[at]} />}
            {at < length - 1 && '\n'}
          </Fragment>
        ))}
      </code>
    </Block>
  );
}

type TextNode = {
  type: string;
  value?: string;
  data?: unknown;
  children?: TextNode[];
  position?: { start: { offset?: number }; end: { offset?: number } };
};

/**
 * "$5 and $10" is no formula. As on GitHub, a single dollar begins one only before a character that is no space, and ends
 * it only after such a one and before no letter or digit. A paragraph that is one formula between `$$` is a block.
 */
function remarkDollars(source: string) {
  return function repair(node: TextNode): void {
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
    for (const child of node.children ?? []) repair(child);
  };
}

/** As the plugin makes of a formula between lines of `$$`. */
function blockMath({ value = '' }: TextNode) {
  const code = {
    type: 'element',
    tagName: 'code',
    properties: { className: ['language-math', 'math-display'] },
    children: [{ type: 'text', value }],
  };
  return { type: 'math', value, data: { hName: 'pre', hChildren: [code] } };
}

/** Null: it leads out of the repository. */
function resolve(from: string, href: string): string | null {
  if (/^[a-z][a-z0-9+.-]*:|^\/\//i.test(href)) return null;
  const base = `http://repository/${href.startsWith('/') ? '' : from}`;
  if (!URL.canParse(href, base)) return null;
  try {
    return decodeURIComponent(new URL(href, base).pathname.slice(1));
  } catch {
    return null;
  }
}

function RelativeLink({
  namespace,
  repository,
  at,
  from,
  href,
  children,
}: Omit<Place, 'revision'> & { from: string } & Pick<ComponentProps<'a'>, 'href' | 'children'>) {
  const path = href && !href.startsWith('#') ? resolve(from, href) : null;
  if (path !== null)
    return (
      <Link
        to={
          href?.endsWith('/') || path === ''
            ? '/$namespace/$repository/tree/$'
            : '/$namespace/$repository/file/$'
        }
        params={{ namespace, repository, _splat: path.replace(/\/$/, '') }}
        search={{ ref: at }}
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

/** Those of the repository; one of another host would tell that host who reads this, and is a link instead. */
function Image({
  namespace,
  repository,
  revision,
  from,
  src,
  alt,
}: Place & { from: string; src: string; alt: string }) {
  const path = resolve(from, src);
  const asked = useAsk({
    query: ImageQuery,
    variables: { namespace, name: repository, path: path ?? '', ref: revision },
    pause: path === null,
  });
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
