/** Artifacts of a job: the list of files, and their download into a folder. */
import { type ArtifactFile, DownloadFolder, type LeftOutReason } from './download.ts';
import { LoamError } from './errors.ts';
import { graphql } from './graphql.ts';
import { checkOptions, type OptionNames, RETRY_OPTIONS } from './options.ts';
import { demand, readPages } from './pages.ts';
import { type RetryOptions, retry } from './retry.ts';
import type { Transport } from './transport.ts';

const MAX_CONCURRENCY = 64;

const LIST_FILES = graphql(`
  query ListArtifacts($namespace: String!, $name: String!, $first: Int!, $after: String) {
    job(namespace: $namespace, name: $name) {
      artifacts {
        files(first: $first, after: $after) {
          nodes { path sizeBytes downloadUrl } pageInfo { hasNextPage endCursor }
        }
      }
    }
  }
`);

const NO_FILES = { nodes: [], pageInfo: { hasNextPage: false, endCursor: null } };

export type ArtifactListOptions = RetryOptions & {
  /** Only this file, or the files of this folder. */
  path?: string | undefined;
};

export type DownloadOptions = ArtifactListOptions & {
  /** Files that are downloaded at the same time: 1 to 64. */
  concurrency?: number | undefined;
  /** Called with the number of bytes that have arrived since the last call. */
  onBytes?: ((file: ArtifactFile, bytes: number) => void) | undefined;
  /** Called when a file is complete. */
  onFile?: ((file: ArtifactFile) => void) | undefined;
  /** Replaces also files that no earlier download wrote. */
  force?: boolean | undefined;
  /** Called for a file that is not written. Without it, a warning of the process says so. */
  onLeftOut?: ((file: ArtifactFile, reason: LeftOutReason) => void) | undefined;
};

const DOWNLOAD_OPTIONS: OptionNames<DownloadOptions> = {
  ...RETRY_OPTIONS,
  path: true,
  concurrency: true,
  onBytes: true,
  onFile: true,
  force: true,
  onLeftOut: true,
};

type Key = { namespace: string; name: string };

/** The files that a job left at its `outputPath`. */
export class Artifacts {
  readonly #transport: Transport;
  readonly #key: Key;

  constructor(transport: Transport, key: Key) {
    this.#transport = transport;
    this.#key = { namespace: key.namespace, name: key.name };
  }

  /** Lists the files; none while there are no artifacts. @throws LoamError */
  async *list(options: ArtifactListOptions = {}): AsyncGenerator<ArtifactFile> {
    checkOptions(options, { ...RETRY_OPTIONS, path: true });
    const { path, ...retrying } = options;
    const folder = path?.replace(/\/+$/, '');
    const read = async (range: { first: number; after: string | null }) => {
      const variables = { ...this.#key, ...range };
      const { job } = await retry(
        () => this.#transport.graphql(LIST_FILES, variables, { signal: retrying.signal }),
        retrying,
      );
      return demand(job, 'Job').artifacts?.files ?? NO_FILES;
    };
    for await (const file of readPages(read, { what: 'Artifacts' }))
      if (!folder || file.path === folder || file.path.startsWith(`${folder}/`)) yield file;
  }

  /**
   * Downloads the files into a folder, several at once. A file whose transfer was cut is continued, also by a later call.
   * Left out are files below a folder that git would take for its `.git`, files named `HEAD`, and, without `force`, files whose
   * place is taken by a file that no earlier download wrote, or that has been changed since. Only in Node.
   * @returns the files that were written
   * @throws LoamError; `bad_answer` for a file name that leads out of the folder
   */
  async download(folder: string, options: DownloadOptions = {}): Promise<ArtifactFile[]> {
    checkOptions(options, DOWNLOAD_OPTIONS);
    const { path, concurrency = 4, onBytes, onFile, force = false, ...others } = options;
    const { onLeftOut = warnLeftOut, ...retrying } = others;
    const target = await DownloadFolder.open(folder);
    const files = this.list({ path, ...retrying });
    const done: ArtifactFile[] = [];
    const failure = new AbortController();
    const signal = retrying.signal
      ? AbortSignal.any([retrying.signal, failure.signal])
      : failure.signal;
    const work = async () => {
      for await (const file of files) {
        const leftOut = await target.download(file, {
          ...retrying,
          signal,
          force,
          send: (url, init) => this.#transport.download(url, init),
          renew: () => this.#find(file.path, { signal }),
          onBytes: (bytes) => onBytes?.(file, bytes),
        });
        if (leftOut) onLeftOut(file, leftOut);
        else {
          done.push(file);
          onFile?.(file);
        }
      }
    };
    try {
      const length = Math.min(Math.max(concurrency, 1), MAX_CONCURRENCY);
      await Promise.all(Array.from({ length }, work));
    } catch (error) {
      failure.abort(error);
      throw error;
    }
    return done;
  }

  /** A fresh link to a file. @throws LoamError `not_found` */
  async #find(path: string, options: RetryOptions): Promise<ArtifactFile> {
    for await (const file of this.list({ path, ...options })) if (file.path === path) return file;
    throw new LoamError('not_found', `The artifact ${path} does not exist any more.`, {
      status: 404,
    });
  }
}

function warnLeftOut({ path }: ArtifactFile, reason: LeftOutReason): void {
  const why = {
    git_folder: 'a part of its path is .git',
    exists: 'a file that no earlier download wrote has its name',
  }[reason];
  process.emitWarning(`The artifact ${JSON.stringify(path)} was left out: ${why}.`, 'LoamWarning');
}
