/**
 * The volumes in the YAML file of `LOAM_VOLUMES`: folders and claims with data that jobs mount.
 *
 *   volumes:
 *     - { name: imagenet, path: /srv/imagenet, claim: imagenet-pvc, namespaces: [ada], access: read, max_gb: 500 }
 *     - { name: scratch, path: /srv/scratch, access: write, per_namespace: true }
 */
import { posix } from 'node:path';
import { z } from 'zod';
import { isPossibleNamespaceName } from '../names.ts';
import { describeIssues, type Problem, readYaml } from '../yaml.ts';
import { CurrentFile } from './current-file.ts';

export type Volume = {
  name: string;
  /** The folder on machines; null: none has it. */
  path: string | null;
  /** The PersistentVolumeClaim on Kubernetes; null: there is none. */
  claim: string | null;
  /** The namespaces whose jobs may mount it, in lower case; null: all. */
  namespaces: readonly string[] | null;
  access: 'read' | 'write';
  /** Each namespace has a subfolder of its own, and its jobs see only that. */
  perNamespace: boolean;
  /** At this size no further job may write to it; null: any size. */
  maxGb: number | null;
};

const MAX_VOLUMES = 200;
const MAX_PATH = 3_000;

const PATH = 'must be an absolute path without "..", such as /srv/imagenet, and not "/"';

function isFolderPath(path: string): boolean {
  return (
    path.startsWith('/') &&
    !path.split('/').includes('..') &&
    !/\p{Cc}/u.test(path) &&
    posix.normalize(path) !== '/' &&
    Buffer.byteLength(path) <= MAX_PATH
  );
}

export const VOLUME_NAME = /^[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?$/;

const volume = z
  .strictObject({
    name: z
      .string()
      .regex(
        VOLUME_NAME,
        'must be 1 to 64 lower-case letters, digits, dots, hyphens and underscores, with a letter or digit at both ends',
      ),
    path: z
      .string()
      .refine(isFolderPath, PATH)
      .transform((path) => posix.normalize(path).replace(/\/$/, ''))
      .optional(),
    claim: z
      .string()
      .regex(
        /^[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?$/,
        'must be the name of a PersistentVolumeClaim',
      )
      .optional(),
    namespaces: z
      .array(
        z
          .string()
          .refine(isPossibleNamespaceName, 'must be the name of a namespace')
          .transform((name) => name.toLowerCase()),
      )
      .min(1)
      .max(1_000)
      .optional(),
    access: z.enum(['read', 'write']).default('read'),
    per_namespace: z.boolean().default(false),
    max_gb: z.number().positive().max(1e9).optional(),
  })
  .refine(({ path, claim }) => path !== undefined || claim !== undefined, {
    error: 'must have a path, a claim, or both',
    path: ['name'],
  });

const schema = z.strictObject({ volumes: z.array(volume).max(MAX_VOLUMES).default([]) });

/** Whether jobs of the namespace may mount the volume. */
export function mayMount({ namespaces }: Volume, namespace: string): boolean {
  return namespaces === null || namespaces.includes(namespace.toLowerCase());
}

/** The volumes that are declared now. */
export class CurrentVolumes extends CurrentFile<readonly Volume[]> {
  /** @throws Error that lists all mistakes of the file, a line for each */
  constructor(path: string | null) {
    const parse = (text: string) => {
      const { volumes: value, problems } = parseVolumes(text);
      return { value, problems };
    };
    super(path, parse, []);
  }

  find(name: string): Volume | undefined {
    return this.current.find((one) => one.name === name);
  }
}

/** @returns the volumes, or null and all mistakes in the order of the text */
export function parseVolumes(text: string): {
  volumes: readonly Volume[] | null;
  problems: Problem[];
} {
  const yaml = readYaml(text);
  if (yaml.problems.length > 0) return { volumes: null, problems: yaml.problems };
  const value = yaml.value ?? {};
  const { data, error } = schema.safeParse(value);
  const problems = [
    ...(error ? describeIssues(yaml, error.issues) : []),
    ...findRepeated(value, yaml.locate),
    ...findNested(data?.volumes ?? [], yaml.locate),
  ].map((problem) => ({ ...problem, message: nameEntry(problem.message, value) }));
  if (!data || problems.length > 0)
    return {
      volumes: null,
      problems: problems.sort((a, b) => a.line - b.line || a.column - b.column),
    };
  const volumes = data.volumes.map(
    ({ name, path, claim, namespaces, access, per_namespace: perNamespace, max_gb: maxGb }) => ({
      name,
      path: path ?? null,
      claim: claim ?? null,
      namespaces: namespaces ?? null,
      access,
      perNamespace,
      maxGb: maxGb ?? null,
    }),
  );
  return { volumes, problems: [] };
}

function listNames(value: unknown): unknown[] {
  const { volumes } = value as { volumes?: unknown };
  return Array.isArray(volumes) ? volumes.map((one: { name?: unknown } | null) => one?.name) : [];
}

/** Adds the name of the volume to the index in a message. */
function nameEntry(message: string, value: unknown): string {
  const index = /volumes\[(\d+)\]/.exec(message)?.[1];
  const name = index === undefined ? undefined : listNames(value)[Number(index)];
  return typeof name === 'string' && VOLUME_NAME.test(name)
    ? `${message} (volume ${name})`
    : message;
}

/** Not a rule of the schema, which does not look for repeated names while something else is wrong. */
function findRepeated(value: unknown, locate: ReturnType<typeof readYaml>['locate']): Problem[] {
  const names = listNames(value);
  return names.flatMap((name, i) =>
    typeof name === 'string' && names.indexOf(name) < i
      ? [
          {
            ...locate(['volumes', i, 'name']),
            message: `volumes[${i}].name: the name is given twice`,
          },
        ]
      : [],
  );
}

/** Jobs that write to a volume could put a link in place of a folder in it, so that another volume would be any folder of the machine. */
function findNested(
  volumes: readonly z.infer<typeof volume>[],
  locate: ReturnType<typeof readYaml>['locate'],
): Problem[] {
  const written = volumes.filter(({ access, path }) => access === 'write' && path !== undefined);
  return volumes.flatMap(({ path }, i) => {
    const outer = written.find((one) => path?.startsWith(`${one.path}/`));
    if (!outer) return [];
    const problem = `must not be inside the path of ${outer.name}, whose jobs could replace it by a link`;
    return [{ ...locate(['volumes', i, 'path']), message: `volumes[${i}].path: ${problem}` }];
  });
}
