/**
 * Markdown of users. HTML in it is cleaned by a list of what is allowed (GitHub's), so that no script, style or form gets
 * through, and nothing is loaded from other hosts.
 */
import { Link } from '@tanstack/react-router';
import type { ComponentProps } from 'react';
import ReactMarkdown from 'react-markdown';
import rehypeRaw from 'rehype-raw';
import rehypeSanitize from 'rehype-sanitize';
import remarkGfm from 'remark-gfm';
import { graphql } from '../../graphql/graphql.ts';
import { useAsk } from '../../ui/load.tsx';

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

export default function Markdown({ text, path, ...place }: Place & { text: string; path: string }) {
  return (
    <div className="markdown min-w-0 break-words">
      <ReactMarkdown
        remarkPlugins={[remarkGfm]}
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
