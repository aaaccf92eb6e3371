/**
 * Names of images, in the one form in which they are compared, pulled and inspected.
 *
 * Docker lets many spellings stand for one image (`debian`, `library/debian`, `index.docker.io/library/debian:latest`),
 * and takes the id of any image that it has for a name. Here each name is first written out in full, as
 * github.com/distribution/reference does, and only that form is used from then on: what `LOAM_IMAGES` was asked about
 * is what runs.
 */

export type Reference = {
  /** Host of the registry, in lower case, perhaps with a port. */
  registry: string;
  repository: string;
  /** A digest decides where both are given, as it does for the engine, which does not look at the tag then. */
  tag: string | null;
  digest: string | null;
};

const HUB = 'docker.io';
const DOMAIN =
  /^(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*|\[[a-f0-9:]+\])(?::\d{1,5})?$/i;
const PATH = /^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:\/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$/;
const TAG = /^\w[\w.-]{0,127}$/;
const DIGEST = /^sha(?:256:[a-f0-9]{64}|512:[a-f0-9]{128})$/;
/** Of the repository with its registry: the specification's limit. */
const MAX_LENGTH = 255;

/** Null for what is the name of no image. */
export function parseReference(text: string): Reference | null {
  const [name = '', digest = null, ...more] = text.split('@');
  const { path, tag } = splitTag(name);
  const { registry, repository } = splitRegistry(path);
  const isName =
    more.length === 0 &&
    DOMAIN.test(registry) &&
    PATH.test(repository) &&
    registry.length + repository.length < MAX_LENGTH &&
    (tag === null || TAG.test(tag)) &&
    (digest === null || DIGEST.test(digest)) &&
    // The engine takes 64 such digits for the id of an image.
    !/^[a-f0-9]{64}$/.test(path);
  if (!isName) return null;
  return { registry, repository, digest, tag: digest === null ? (tag ?? 'latest') : null };
}

/** `docker.io/library/debian:latest`. */
export function written({ registry, repository, tag, digest }: Reference): string {
  return `${registry}/${repository}${digest ? `@${digest}` : `:${tag}`}`;
}

/** A tag cannot hold a slash, and before a port there is none. */
function splitTag(name: string): { path: string; tag: string | null } {
  const colon = name.lastIndexOf(':');
  if (colon <= name.lastIndexOf('/')) return { path: name, tag: null };
  return { path: name.slice(0, colon), tag: name.slice(colon + 1) };
}

/** What stands before the first slash is a registry when it looks like a host. */
function splitRegistry(path: string): { registry: string; repository: string } {
  const slash = path.indexOf('/');
  const first = path.slice(0, Math.max(0, slash));
  const isHost = /[.:]/.test(first) || first === 'localhost' || first !== first.toLowerCase();
  const host = isHost ? first.toLowerCase() : HUB;
  const registry = host === `index.${HUB}` ? HUB : host;
  const repository = isHost ? path.slice(slash + 1) : path;
  const isOfficial = registry === HUB && !repository.includes('/');
  return { registry, repository: isOfficial ? `library/${repository}` : repository };
}

/** Whether a list lets an image pass. */
export type AllowedImages = (image: Reference) => boolean;

/**
 * `LOAM_IMAGES`: patterns in which `*` stands for anything within one part of a name, `**` for anything, and which are
 * written as images are: `debian` is `docker.io/library/debian`. One without a tag allows each tag and each digest;
 * one with a tag allows that tag alone, and so no digest, whatever tag stands before it.
 *
 * @returns a message in place of the list when a pattern is none
 */
export function allowedImages(patterns: readonly string[]): AllowedImages | { wrong: string } {
  const tests: AllowedImages[] = [];
  for (const pattern of patterns) {
    const test = testOf(pattern);
    if (!test) return { wrong: pattern };
    tests.push(test);
  }
  return (image) => tests.some((test) => test(image));
}

function testOf(pattern: string): AllowedImages | null {
  if (pattern === '**') return () => true;
  if (!/^[\w.:/@[\]*-]+$/.test(pattern)) return null;
  const [name = '', digest] = pattern.split('@');
  const { path, tag } = splitTag(name);
  // `**` may stand for a registry, and for a registry with the beginning of a path.
  const { registry, repository } = path.startsWith('**')
    ? { registry: '', repository: path }
    : splitRegistry(path);
  const place = glob(registry ? `${registry}/${repository}` : repository);
  const [tags, digests] = [tag, digest].map((one) => (one == null ? null : glob(one)));
  return (image) => {
    if (!place.test(`${image.registry}/${image.repository}`)) return false;
    if (digests) return image.digest !== null && digests.test(image.digest);
    return !tags || (image.tag !== null && tags.test(image.tag));
  };
}

function glob(pattern: string): RegExp {
  const parts = pattern
    .split(/(\*+)/)
    .map((part, i) =>
      i % 2 === 0 ? part.replace(/[.[\]]/g, '\\$&') : part.length > 1 ? '.*' : '[^/]*',
    );
  return new RegExp(`^${parts.join('')}$`);
}
