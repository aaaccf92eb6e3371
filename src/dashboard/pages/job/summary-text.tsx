import type { ReactNode } from 'react';
import { graphql } from '../../graphql/graphql.ts';
import { useRetryingQuery } from '../../ui/load.tsx';
import { MarkdownText, resolvePath } from '../repository/markdown.tsx';
import { ArtifactImage } from './artifact-preview.tsx';

const FileQuery = graphql(`
  query SummaryFile($namespace: String!, $name: String!, $path: String!) {
    job(namespace: $namespace, name: $name) {
      id
      artifacts { path file(path: $path) { path sizeBytes downloadUrl } }
    }
  }
`);

/** Artifacts of which links and images are shown: each is looked up by a request. */
const MAX_FILES = 100;

type JobName = { namespace: string; name: string };

/** Relative links and images are artifacts of the job. Images of other hosts become links: loading them would expose the reader. */
export default function SummaryText({ job, text }: { job: JobName; text: string }) {
  const paths = new Set<string>();
  const isLookedUp = (path: string) => {
    if (paths.size < MAX_FILES) paths.add(path);
    return paths.has(path);
  };
  return (
    <MarkdownText
      text={text}
      renderLink={(href, children) => {
        const path = href.startsWith('#') ? null : resolvePath('', href);
        if (path !== null && !isLookedUp(path)) return children;
        if (path !== null)
          return (
            <ArtifactFile job={job} path={path}>
              {(file) => (file ? <a href={file.downloadUrl}>{children}</a> : children)}
            </ArtifactFile>
          );
        return (
          <a href={href} rel="nofollow noreferrer noopener">
            {children}
          </a>
        );
      }}
      renderImage={(src, alt) => {
        const path = resolvePath('', src);
        if (path !== null && !isLookedUp(path))
          return <span className="text-dim">{alt || path}</span>;
        if (path !== null)
          return (
            <ArtifactFile job={job} path={path}>
              {(file) =>
                file ? (
                  <ArtifactImage
                    path={file.path}
                    url={file.downloadUrl}
                    sizeBytes={file.sizeBytes}
                    alt={alt}
                  />
                ) : (
                  <span className="text-dim">{alt || path}</span>
                )
              }
            </ArtifactFile>
          );
        return /^https?:/i.test(src) ? (
          <a href={src} rel="nofollow noreferrer noopener">
            {alt || 'image'}
          </a>
        ) : (
          <span className="text-dim">{alt}</span>
        );
      }}
    />
  );
}

type FileData = { path: string; sizeBytes: number; downloadUrl: string };

/** Finds an artifact by its path below `output_path`. */
function ArtifactFile({
  job,
  path,
  children,
}: {
  job: JobName;
  path: string;
  children(file: FileData | null): ReactNode;
}) {
  const { data } = useRetryingQuery({ query: FileQuery, variables: { ...job, path } });
  return children(data?.job?.artifacts?.file ?? null);
}
