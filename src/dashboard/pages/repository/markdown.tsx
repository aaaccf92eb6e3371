/**
 * Renders Markdown from users. HTML is sanitized with GitHub's allowlist, which removes scripts, styles and forms, and nothing
 * loads from other hosts. Highlighting, formulas and diagrams come after sanitizing, so they are built from plain text only.
 */
import { Link } from '@tanstack/react-router';
import { Info, Lightbulb, MessageSquareWarning, OctagonAlert, TriangleAlert } from 'lucide-react';
import { type ComponentProps, Fragment, type ReactNode, useEffect, useState } from 'react';
import ReactMarkdown from 'react-markdown';
import { graphql } from '../../graphql/graphql.ts';
import { useRetryingQuery } from '../../ui/load.tsx';
import { Diagram } from './diagram.tsx';
import { Formula } from './formula.tsx';
import { languageNamed } from './highlight.ts';
import { type HtmlNode, rehypePlugins, remarkPlugins, textOf } from './markdown-plugins.ts';
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
    <MarkdownText
      text={text}
      renderLink={(href, children) => (
        <RelativeLink {...source} from={path} href={href}>
          {children}
        </RelativeLink>
      )}
      renderImage={(src, alt) => <Image {...source} from={path} src={src} alt={alt} />}
    />
  );
}

type TextProps = {
  text: string;
  renderLink(href: string, children: ReactNode): ReactNode;
  renderImage(src: string, alt: string): ReactNode;
};

/** Markdown whose links and images lead where the caller says. */
export function MarkdownText({ text, renderLink, renderImage }: TextProps) {
  const emojiNames = useEmojiNames(text);
  return (
    <div className="markdown min-w-0 break-words">
      <ReactMarkdown
        remarkPlugins={[...remarkPlugins(text), ...(emojiNames ? [emojiNames] : [])]}
        rehypePlugins={rehypePlugins}
        components={{
          a: ({ href = '', children }) => renderLink(href, children),
          img: ({ src, alt }) => renderImage(String(src ?? ''), alt ?? ''),
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
          blockquote: ({ node, children }) => {
            const kind = node?.properties.dataAlert as AlertKind | undefined;
            return kind ? (
              <Alert kind={kind}>{children}</Alert>
            ) : (
              <blockquote>{children}</blockquote>
            );
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

/** The plugin that replaces names such as `:rocket:`, once it has loaded: its table is larger than this module. */
function useEmojiNames(text: string) {
  const [loaded, setLoaded] = useState<typeof import('remark-gemoji')>();
  const isNeeded = /:[\w+-]+:/.test(text);
  useEffect(() => {
    // Names stay as they are if the table does not load.
    if (isNeeded) import('remark-gemoji').then(setLoaded, () => {});
  }, [isNeeded]);
  return loaded?.default;
}

const ALERTS = {
  note: ['Note', Info, 'border-run', 'text-run'],
  tip: ['Tip', Lightbulb, 'border-good', 'text-good'],
  important: ['Important', MessageSquareWarning, 'border-accent', 'text-accent'],
  warning: ['Warning', TriangleAlert, 'border-warn', 'text-warn'],
  caution: ['Caution', OctagonAlert, 'border-bad', 'text-bad'],
} as const;
type AlertKind = keyof typeof ALERTS;

/** A quote that begins with a marker such as `[!NOTE]`. */
function Alert({ kind, children }: { kind: AlertKind; children: ReactNode }) {
  const [title, Icon, border, color] = ALERTS[kind];
  return (
    <div className={`border-l-4 pl-4 ${border}`} data-alert={kind}>
      <p className={`flex items-center gap-2 font-semibold ${color}`}>
        <Icon size={16} aria-hidden /> {title}
      </p>
      {children}
    </div>
  );
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

/** The path in the repository that a link or image refers to, or null if it leads elsewhere. */
export function resolvePath(from: string, href: string): string | null {
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
