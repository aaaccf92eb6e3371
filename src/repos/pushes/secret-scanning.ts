/**
 * Secrets in a push: well-known credentials whose form alone gives them away, so that a finding is hardly
 * ever wrong. Only lines that the push adds are looked at.
 */

type Kind = { name: string; pattern: RegExp };

/** The forms that issuers document. A group, where there is one, is the part that is random. */
const KINDS: readonly Kind[] = [
  { name: 'a Loam access token', pattern: /\bloam_pat_([0-9A-Za-z]{46})\b/ },
  { name: 'an AWS access key id', pattern: /\b(?:AKIA|ASIA)([A-Z2-7]{16})\b/ },
  { name: 'a GitHub token', pattern: /\bgh[pousr]_([0-9A-Za-z]{36,251})\b/ },
  { name: 'a GitHub fine-grained token', pattern: /\bgithub_pat_([0-9A-Za-z_]{82})\b/ },
  { name: 'a GitLab token', pattern: /\bglpat-([0-9A-Za-z_-]{20,})/ },
  { name: 'a Slack token', pattern: /\bxox[abeoprs]-((?:\d+-)+[0-9A-Za-z-]{10,})\b/ },
  {
    name: 'a Slack webhook',
    pattern: /hooks\.slack\.com\/services\/(T[0-9A-Z]{8,}\/B[0-9A-Z]{8,}\/[0-9A-Za-z]{24})/,
  },
  { name: 'a Stripe live key', pattern: /\b[rs]k_live_([0-9A-Za-z]{24,})\b/ },
  { name: 'a Google API key', pattern: /\bAIza([0-9A-Za-z_-]{35})(?![0-9A-Za-z_-])/ },
  { name: 'a Hugging Face token', pattern: /\bhf_([0-9A-Za-z]{34})\b/ },
  {
    name: 'an OpenAI key',
    pattern: /\bsk-(?:proj-|svcacct-)?([0-9A-Za-z_-]{20,}T3BlbkFJ[0-9A-Za-z_-]{20,})/,
  },
  { name: 'an Anthropic key', pattern: /\bsk-ant-[a-z]+\d{2}-([0-9A-Za-z_-]{80,})/ },
  { name: 'an npm token', pattern: /\bnpm_([0-9A-Za-z]{36})\b/ },
  { name: 'a PyPI token', pattern: /\bpypi-(AgEIcHlwaS5vcmc[0-9A-Za-z_-]{50,})/ },
  {
    name: 'a SendGrid key',
    pattern: /\bSG\.([0-9A-Za-z_-]{22}\.[0-9A-Za-z_-]{43})(?![0-9A-Za-z_-])/,
  },
  {
    name: 'a private key',
    pattern: /-----BEGIN (?:RSA |EC |DSA |OPENSSH |ENCRYPTED |PGP )?PRIVATE KEY(?: BLOCK)?-----/,
  },
];

/** One expression that excludes most lines: what each form begins with. */
const HINT =
  /loam_pat_|AKIA|ASIA|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|hooks\.slack|[rs]k_live_|AIza|hf_|sk-|npm_|pypi-Ag|SG\.|PRIVATE KEY/;
/** Fewer different characters than this are a placeholder, such as `ghp_xxxxxxxx`. */
const MIN_DISTINCT = 7;

/** What the line gives away, or null. */
export function secretIn(line: string): string | null {
  if (!HINT.test(line)) return null;
  for (const { name, pattern } of KINDS) {
    const match = pattern.exec(line);
    if (match && isLive(match[0], match[1])) return name;
  }
  return null;
}

/** Documentation is full of examples, and says so in them. */
function isLive(whole: string, random = whole): boolean {
  return new Set(random).size >= MIN_DISTINCT && !/EXAMPLE/i.test(random);
}

export type Finding = { secret: string; commit: string; path: string; line: number };

export type AddedLine = { commit: string; path: string; line: number; text: string };

/**
 * The added lines of a patch without context (`git log --patch --cc --unified=0`). Lines within a hunk are
 * counted off by its header, so a file's content cannot pass for a header.
 */
export async function* addedLines(patch: AsyncIterable<string>): AsyncGenerator<AddedLine> {
  let commit = '';
  let path = '';
  let line = 0;
  /** Lines of the new file that the hunk still holds, and the number of parents it is compared with. */
  let left = 0;
  let removed: number[] = [];
  let parents = 1;
  for await (const text of patch) {
    const inHunk = left > 0 || removed.some((count) => count > 0);
    if (inHunk && !text.startsWith('\\')) {
      const marks = text.slice(0, parents);
      if (marks.includes('-')) {
        removed = removed.map((count, i) => count - (marks[i] === '-' ? 1 : 0));
        continue;
      }
      left--;
      // A line that one parent has is that parent's, and was looked at there.
      if (!marks.includes(' ')) yield { commit, path, line, text: text.slice(parents) };
      removed = removed.map((count, i) => count - (marks[i] === ' ' ? 1 : 0));
      line++;
      continue;
    }
    const hunk = /^(@{2,})((?: -\d+(?:,\d+)?)+) \+(\d+)(?:,(\d+))? \1/.exec(text);
    if (hunk) {
      const [, marks = '', olds = '', start, count] = hunk;
      parents = marks.length - 1;
      removed = olds
        .trim()
        .split(' ')
        .map((old) => Number(old.split(',')[1] ?? 1));
      line = Number(start);
      left = Number(count ?? 1);
    } else if (text.startsWith('commit ')) {
      commit = text.slice('commit '.length);
    } else if (text.startsWith('+++ ')) {
      path = unquoted(text.slice('+++ '.length));
    }
  }
}

/** The first secrets of a patch, at most `limit`. */
export async function findSecrets(patch: AsyncIterable<string>, limit: number): Promise<Finding[]> {
  const findings: Finding[] = [];
  for await (const { text, ...place } of addedLines(patch)) {
    const secret = secretIn(text);
    if (secret) findings.push({ secret, ...place });
    if (findings.length >= limit) break;
  }
  return findings;
}

/** A path as git shows it: with a tab after it when it holds spaces, in quotes when it holds special characters. */
function unquoted(shown: string): string {
  const path = shown.replace(/\t$/, '');
  return Buffer.from(path, 'latin1').toString('utf8');
}
