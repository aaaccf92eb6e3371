import { ChevronRight, Download, Eye, File, Folder } from 'lucide-react';
import { lazy, Suspense, useEffect, useState } from 'react';
import { useClient } from 'urql';
import { problemOf } from '../../graphql/client.ts';
import type { ResultOf } from '../../graphql/graphql.ts';
import { count, size } from '../../ui/format.ts';
import { Waiting } from '../../ui/load.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { isOver } from '../../ui/status.tsx';
import type { JobData } from './facts.tsx';
import { JobArtifacts } from './queries.ts';

const ArtifactPreview = lazy(() => import('./artifact-preview.tsx'));

type Kept = NonNullable<NonNullable<ResultOf<typeof JobArtifacts>['job']>['artifacts']>;
type FileData = NonNullable<Kept['files']>['nodes'][number];

/** Links work for a quarter of an hour; the list is asked for again before they stop. */
const FRESH_MS = 10 * 60_000;
const FRESH = { requestPolicy: 'network-only' } as const;
/** More are in the archive. */
const MOST = 2_000;

/** What the job left at its output path, as a tree. */
export function Artifacts({ job: { namespace, name, outputPath, status } }: { job: JobData }) {
  const client = useClient();
  const [kept, setKept] = useState<Kept | null>(null);
  const [files, setFiles] = useState<FileData[]>([]);
  const [problem, setProblem] = useState<ReturnType<typeof problemOf> | null>(null);
  useEffect(() => {
    if (!outputPath || !isOver(status)) return;
    let isLeft = false;
    const ask = (after: string | null) =>
      client.query(JobArtifacts, { namespace, name, after }, FRESH).toPromise();
    async function read(): Promise<void> {
      const all: FileData[] = [];
      for (let after: string | null = null; ; ) {
        const part = await ask(after);
        if (isLeft) return;
        if (part.error) return setProblem(problemOf(part.error));
        const found = part.data?.job?.artifacts;
        all.push(...(found?.files?.nodes ?? []));
        setKept(found ?? null);
        setFiles([...all]);
        const page = found?.files?.pageInfo;
        if (!page?.hasNextPage || all.length >= MOST) return;
        after = page.endCursor ?? null;
      }
    }
    void read();
    const timer = setInterval(read, FRESH_MS);
    return () => {
      isLeft = true;
      clearInterval(timer);
    };
  }, [client, namespace, name, outputPath, status]);

  if (!outputPath) return null;
  return (
    <section aria-labelledby="artifacts">
      <div className="mb-2 flex flex-wrap items-baseline gap-x-3">
        <h2 id="artifacts">Artifacts</h2>
        {kept && (
          <>
            <span className="text-sm text-dim">
              {count(kept.fileCount, 'file')}, {size(kept.sizeBytes)} as an archive
            </span>
            <a href={kept.downloadUrl} className="link ml-auto text-sm">
              Download all
            </a>
          </>
        )}
      </div>
      {problem && <ProblemBox problem={problem} />}
      {kept ? (
        <div className="card p-2">
          <Entries node={treeOf(files)} />
          {kept.fileCount > files.length && files.length >= MOST && (
            <p className="px-2 py-1 text-sm text-dim">
              The first {MOST} are shown; all are in the archive.
            </p>
          )}
        </div>
      ) : (
        <p className="text-sm text-dim">
          {isOver(status)
            ? `The job wrote no files to ${outputPath}.`
            : `Files under ${outputPath} are kept as artifacts when the job ends.`}
        </p>
      )}
    </section>
  );
}

type Node = {
  folders: Map<string, Node>;
  files: { name: string; file: FileData }[];
  bytes: number;
};

function treeOf(files: readonly FileData[]): Node {
  const root: Node = { folders: new Map(), files: [], bytes: 0 };
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

function Entries({ node }: { node: Node }) {
  return (
    <ul className="text-sm">
      {[...node.folders].map(([name, folder]) => (
        <li key={name}>
          <details>
            <summary className="flex items-center gap-2 rounded px-2 py-1 hover:bg-hover [details[open]>&>svg:first-child]:rotate-90">
              <ChevronRight size={14} aria-hidden className="shrink-0 text-dim" />
              <Folder size={15} aria-hidden className="shrink-0 text-dim" />
              <span className="min-w-0 flex-1 break-all">{name}</span>
              <span className="text-dim tabular-nums">{size(folder.bytes)}</span>
            </summary>
            <div className="pl-5">
              <Entries node={folder} />
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
          <span className="text-dim tabular-nums">{size(file.sizeBytes)}</span>
          <Download size={14} aria-hidden className="shrink-0 text-dim" />
        </a>
        {isHere(file.downloadUrl) && (
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
        <Suspense fallback={<Waiting />}>
          <ArtifactPreview path={file.path} url={file.downloadUrl} sizeBytes={file.sizeBytes} />
        </Suspense>
      )}
    </li>
  );
}

/** Artifacts may have an address of their own (`LOAM_ARTIFACT_URL`), which the policy of the page does not let through. */
function isHere(url: string): boolean {
  return new URL(url).pathname.startsWith('/artifacts/');
}
