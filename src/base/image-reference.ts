/**
 * Names of images in one normalized form, in which they are compared, pulled and inspected.
 *
 * Docker accepts several spellings for one image (`debian`, `library/debian`, `index.docker.io/library/debian:latest`)
 * and also the id of any local image. Each name is normalized as github.com/distribution/reference does, and only the
 * normalized form is used afterwards, so the image that `LOAM_IMAGES` allowed is the image that runs.
 */
import { Pattern } from './pattern.ts';

export type ImageReference = {
  /** Host of the registry in lower case, with an optional port. */
  registry: string;
  repository: string;
  /** Null if there is a digest: the engine ignores the tag then. */
  tag: string | null;
  digest: string | null;
};

const HUB = 'docker.io';
const DOMAIN =
  /^(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*|\[[a-f0-9:]+\])(?::\d{1,5})?$/i;
const PATH = /^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:\/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$/;
const TAG = /^\w[\w.-]{0,127}$/;
const DIGEST = /^sha(?:256:[a-f0-9]{64}|512:[a-f0-9]{128})$/;
/** Limit of the specification for registry and repository together. */
const MAX_LENGTH = 255;

/** Null if `text` is not an image name. */
export function parseImageReference(text: string): ImageReference | null {
  const [name = '', digest = null, ...more] = text.split('@');
  const { path, tag } = splitTag(name);
  const { registry, repository } = splitRegistry(path);
  const isValid =
    more.length === 0 &&
    DOMAIN.test(registry) &&
    PATH.test(repository) &&
    registry.length + repository.length < MAX_LENGTH &&
    (tag === null || TAG.test(tag)) &&
    (digest === null || DIGEST.test(digest)) &&
    // The engine interprets 64 hexadecimal digits as the id of an image.
    !/^[a-f0-9]{64}$/.test(path);
  if (!isValid) return null;
  return { registry, repository, digest, tag: digest === null ? (tag ?? 'latest') : null };
}

/** `docker.io/library/debian:latest`. */
export function formatImageReference({
  registry,
  repository,
  tag,
  digest,
}: ImageReference): string {
  return `${registry}/${repository}${digest ? `@${digest}` : `:${tag}`}`;
}

/** A colon before the last slash belongs to a port: a tag contains no slash. */
function splitTag(name: string): { path: string; tag: string | null } {
  const colon = name.lastIndexOf(':');
  if (colon <= name.lastIndexOf('/')) return { path: name, tag: null };
  return { path: name.slice(0, colon), tag: name.slice(colon + 1) };
}

/** The part before the first slash is a registry if it looks like a host. */
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

/** Whether an allow list contains the image. */
export type AllowedImages = (image: ImageReference) => boolean;

/**
 * Parses `LOAM_IMAGES`. `*` matches any text within one part of a name, `**` any text. Patterns are normalized like names:
 * `debian` is `docker.io/library/debian`. A pattern without a tag allows every tag and digest; a pattern with a tag
 * allows only that tag, and therefore no digest.
 *
 * @returns the invalid pattern instead of the list if there is one
 */
export function parseAllowedImages(patterns: readonly string[]): AllowedImages | { wrong: string } {
  const tests: AllowedImages[] = [];
  for (const pattern of patterns) {
    const test = parsePattern(pattern);
    if (!test) return { wrong: pattern };
    tests.push(test);
  }
  return (image) => tests.some((test) => test(image));
}

function parsePattern(pattern: string): AllowedImages | null {
  if (pattern === '**') return () => true;
  if (!/^[\w.:/@[\]*-]+$/.test(pattern)) return null;
  const [name = '', digest] = pattern.split('@');
  const { path, tag } = splitTag(name);
  // `**` may match a registry, or a registry and the beginning of a path.
  const { registry, repository } = path.startsWith('**')
    ? { registry: '', repository: path }
    : splitRegistry(path);
  const fullName = new Pattern(registry ? `${registry}/${repository}` : repository);
  const [tags, digests] = [tag, digest].map((one) => (one == null ? null : new Pattern(one)));
  return (image) => {
    if (!fullName.matches(`${image.registry}/${image.repository}`)) return false;
    if (digests) return image.digest !== null && digests.matches(image.digest);
    return !tags || (image.tag !== null && tags.matches(image.tag));
  };
}
