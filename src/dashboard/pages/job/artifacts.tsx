import { ChevronRight, Download, Eye, File, Folder } from 'lucide-react';
import { lazy, Suspense, useEffect, useState } from 'react';
import { useClient } from 'urql';
import { toProblem } from '../../graphql/client.ts';
import type { ResultOf } from '../../graphql/graphql.ts';
import { formatBytes, formatCount } from '../../ui/format.ts';
import { LoadingSkeleton } from '../../ui/load.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { isFinished } from '../../ui/status.tsx';
import type { JobData } from './facts.tsx';
import { JobArtifacts } from './queries.ts';

const ArtifactPreview = lazy(() => import('./artifact-preview.tsx'));

type ArtifactsData = NonNullable<NonNullable<ResultOf<typeof JobArtifacts>['job']>['artifacts']>;
type FileData = NonNullable<ArtifactsData['files']>['nodes'][number];

/** Download links expire after 15 minutes, so the list is read again before that. */
const REFRESH_MS = 10 * 60_000;
const UNCACHED = { requestPolicy: 'network-only' } as const;
/** All further files are in the archive. */
const MAX_FILES = 2_000;

/** The artifacts of the job as a tree. */
export function Artifacts({ job: { namespace, name, outputPath, status } }: { job: JobData }) {
  const client = useClient();
  const [artifacts, setArtifacts] = useState<ArtifactsData | null>(null);
  const [files, setFiles] = useState<FileData[]>([]);
  const [problem, setProblem] = useState<ReturnType<typeof toProblem> | null>(null);
  useEffect(() => {
    if (!outputPath || !isFinished(status)) return;
    let isUnmounted = false;
    const fetchPage = (after: string | null) =>
      client.query(JobArtifacts, { namespace, name, after }, UNCACHED).toPromise();
    async function read(): Promise<void> {
      const all: FileData[] = [];
      for (let after: string | null = null; ; ) {
        const part = await fetchPage(after);
        if (isUnmounted) return;
        if (part.error) return setProblem(toProblem(part.error));
        const found = part.data?.job?.artifacts;
        all.push(...(found?.files?.nodes ?? []));
        setArtifacts(found ?? null);
        setFiles([...all]);
        const page = found?.files?.pageInfo;
        if (!page?.hasNextPage || all.length >= MAX_FILES) return;
        after = page.endCursor ?? null;
      }
    }
    void read();
    const timer = setInterval(read, REFRESH_MS);
    return () => {
      isUnmounted = true;
      clearInterval(timer);
    };
  }, [client, namespace, name, outputPath, status]);

  if (!outputPath) return null;
  return (
    <section aria-labelledby="artifacts">
      <div className="mb-2 flex flex-wrap items-baseline gap-x-3">
        <h2 id="artifacts">Artifacts</h2>
        {artifacts && (
          <>
            <span className="text-sm text-dim">
              {formatCount(artifacts.fileCount, 'file')}, {formatBytes(artifacts.sizeBytes)} as an
              archive
            </span>
            <a href={artifacts.downloadUrl} className="link ml-auto text-sm">
              Download all
            </a>
          </>
        )}
      </div>
      {problem && <ProblemBox problem={problem} />}
      {artifacts ? (
        <div className="card p-2">
          <TreeEntries node={buildTree(files)} />
          {artifacts.fileCount > files.length && files.length >= MAX_FILES && (
            <p className="px-2 py-1 text-sm text-dim">
              Only the first {MAX_FILES} files are shown. The archive has all files.
            </p>
          )}
        </div>
      ) : (
        <p className="text-sm text-dim">
          {isFinished(status)
            ? `The job wrote no files to ${outputPath}.`
            : `Files under ${outputPath} are kept as artifacts when the job ends.`}
        </p>
      )}
    </section>
  );
}

type TreeNode = {
  folders: Map<string, TreeNode>;
  files: { name: string; file: FileData }[];
  bytes: number;
};

function buildTree(files: readonly FileData[]): TreeNode {
  const root: TreeNode = { folders: new Map(), files: [], bytes: 0 };
  for (const file of files) {
    const parts = file.path.split('/');
    const name = parts.pop() ?? file.path;
    let node = root;
    for (const part of parts) {
      node.bytes += file.sizeBytes;
      let next = node.folders.get(part);
      if (!next) {
        next = { folders: new Map(), files: [], bytes: 0 };
        node.folders.set(part, next);
      }
      node = next;
    }
    node.bytes += file.sizeBytes;
    node.files.push({ name, file });
  }
  return root;
}

function TreeEntries({ node }: { node: TreeNode }) {
  return (
    <ul className="text-sm">
      {[...node.folders].map(([name, folder]) => (
        <li key={name}>
          <details>
            <summary className="flex items-center gap-2 rounded px-2 py-1 hover:bg-hover [details[open]>&>svg:first-child]:rotate-90">
              <ChevronRight size={14} aria-hidden className="shrink-0 text-dim" />
              <Folder size={15} aria-hidden className="shrink-0 text-dim" />
              <span className="min-w-0 flex-1 break-all">{name}</span>
              <span className="text-dim tabular-nums">{formatBytes(folder.bytes)}</span>
            </summary>
            <div className="pl-5">
              <TreeEntries node={folder} />
            </div>
          </details>
        </li>
      ))}
      {node.files.map(({ name, file }) => (
        <Artifact key={file.path} name={name} file={file} />
      ))}
    </ul>
  );
}

function Artifact({ name, file }: { name: string; file: FileData }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <li>
      <div className="flex items-center gap-1">
        <a
          href={file.downloadUrl}
          className="flex min-w-0 flex-1 items-center gap-2 rounded px-2 py-1 hover:bg-hover"
        >
          <File size={15} aria-hidden className="ml-[22px] shrink-0 text-dim" />
          <span className="min-w-0 flex-1 break-all">{name}</span>
          <span className="text-dim tabular-nums">{formatBytes(file.sizeBytes)}</span>
          <Download size={14} aria-hidden className="shrink-0 text-dim" />
        </a>
        {canPreview(file.downloadUrl) && (
          <button
            type="button"
            aria-label={`Preview ${file.path}`}
            aria-expanded={isOpen}
            onClick={() => setOpen(!isOpen)}
            className="rounded p-1 text-dim hover:bg-hover hover:text-ink"
          >
            <Eye size={16} aria-hidden />
          </button>
        )}
      </div>
      {isOpen && (
        <Suspense fallback={<LoadingSkeleton />}>
          <ArtifactPreview path={file.path} url={file.downloadUrl} sizeBytes={file.sizeBytes} />
        </Suspense>
      )}
    </li>
  );
}

/** The content security policy allows no previews from a separate artifact host (`LOAM_ARTIFACT_URL`). */
function canPreview(url: string): boolean {
  return new URL(url).pathname.startsWith('/artifacts/');
}
