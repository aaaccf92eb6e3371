/**
 * Patterns of credentials that can be recognized by a prefix, which issuers choose so that scanners can find them, or
 * by the text around them, such as the name of a variable. The random part must look random, so false positives are
 * rare.
 *
 * The scanned text is untrusted, so no pattern may be slow on any input (catastrophic backtracking, ReDoS). Every
 * repetition is bounded, and a repeated part can match in only one way: if a text could be divided in two ways, the
 * time would grow exponentially in spite of the bounds.
 */

export type Kind = {
  /**
   * Completes the sentence "adds …", for example "a Stripe live key". Part of the id of a finding, so it never changes.
   */
  name: string;
  /**
   * A short pattern for the beginning of the secret, tried before the full pattern. Secrets of such a kind contain
   * `RUN` (20) token characters in a row, and `find.ts` searches only near such runs.
   */
  hint?: string;
  /** For kinds without a `hint`: substrings, one of which is within 48 characters of the start of each match. */
  anchors?: readonly string[];
  /** The full pattern. Its first group, if any, is the random part. */
  pattern: string;
  /** Whether a match looks like a real secret, not a placeholder. Default: `looksRandom`. */
  looksReal?: (match: RegExpExecArray) => boolean;
};

/** Text with fewer distinct characters is a placeholder, such as `ghp_xxxxxxxx`. */
const MIN_DISTINCT = 7;

export function looksRandom([whole, random = whole]: RegExpExecArray): boolean {
  return new Set(random).size >= MIN_DISTINCT && !/EXAMPLE/i.test(random);
}

/** For matches that could also be a path or a hexadecimal hash: requires upper case, lower case and digits. */
function looksLikeBase64([, random = '']: RegExpExecArray): boolean {
  const mixed = /[A-Z]/.test(random) && /[a-z]/.test(random) && /\d/.test(random);
  return mixed && new Set(random).size >= 16 && !/EXAMPLE/i.test(random);
}

/** Passwords used in examples and test containers, and all that contain `password`, `passwd` or `pwd`. */
const EXAMPLE_PASSWORD =
  /p(?:ass)?w(?:or)?d|^(?:(?:my|your|the|some)[-_]?)?(?:secret|token|key|test|guest|admin|root|user(?:name)?|postgres(?:ql)?|mysql|mongo(?:db)?|redis|rabbit(?:mq)?|change[-_]?me|default|dummy|fake|foo|bar|abc|qwerty|letmein|hunter2|hidden|removed|masked)[-_\d!]*$/i;
const TEMPLATE_PLACEHOLDER =
  /[${}<>[\]()%*`\\]|\.\.\.|…|x{4}|example|placeholder|redacted|your[-_]/i;
/**
 * Hosts reserved for examples, names without a dot or in private domains, and all IPv4 addresses: passwords for these
 * are mostly those of test systems.
 */
const EXAMPLE_HOST =
  /^(?:[^.:]*|\d+\.\d+\.\d+\.\d+|.*\.(?:local|localhost|internal|test|invalid|example|lan)|(?:.*\.)?example\.(?:com|org|net)|(?:.*\.)?(?:host|server|domain|hostname|mydomain|yourdomain)\.(?:com|org|net|tld))$/i;

/** Whether the password of a URL is neither an example nor a placeholder, and the host is not an example. */
function looksLikeRealPassword([, user = '', password = '', host = '']: RegExpExecArray): boolean {
  const characterClasses = [/[a-z]/, /[A-Z]/, /\d/, /[^0-9A-Za-z]/].filter((characters) =>
    characters.test(password),
  );
  return (
    characterClasses.length > 1 &&
    new Set(password).size >= 6 &&
    !EXAMPLE_PASSWORD.test(password) &&
    !TEMPLATE_PLACEHOLDER.test(password) &&
    password.toLowerCase() !== user.toLowerCase() &&
    !EXAMPLE_HOST.test(host) &&
    !TEMPLATE_PLACEHOLDER.test(host)
  );
}

const URL_PARTS = '([^\\s:/@"\'<>]{0,64}):([^\\s@/"\'<>]{3,128})@([\\w.-]{1,253})';
const hex = (length: number | string) => `([0-9a-f]{${length}})(?![0-9A-Za-z])`;
const alphanumeric = (length: number | string) => `([0-9A-Za-z]{${length}})(?![0-9A-Za-z])`;
const base64url = (length: number | string) => `([0-9A-Za-z_-]{${length}})(?![0-9A-Za-z_-])`;

/** The patterns follow the documentation of the issuers. */
export const KINDS: readonly Kind[] = [
  { name: 'a token of a Loam job', hint: 'loam_job_', pattern: `loam_job_${alphanumeric(90)}` },
  { name: 'a Loam access token', hint: 'loam_pat_', pattern: `loam_pat_${alphanumeric(46)}` },
  { name: 'a Loam worker token', hint: 'loam_worker_', pattern: `loam_worker_${alphanumeric(46)}` },
  {
    name: 'a secret of a Loam machine',
    hint: 'loam_machine_',
    pattern: `loam_machine_${alphanumeric(46)}`,
  },
  {
    name: 'an AWS access key id',
    hint: 'A[KS]IA',
    pattern: 'A[KS]IA([A-Z2-7]{16})(?![0-9A-Za-z])',
  },
  {
    name: 'an AWS secret access key',
    anchors: ['secret_access_key', 'SECRET_ACCESS_KEY', 'ecretAccessKey'],
    pattern:
      '(?:secret_access_key|SECRET_ACCESS_KEY|[sS]ecretAccessKey)["\']?[ \\t]{0,8}(?:=>|[=:])[ \\t]{0,8}["\']?([0-9A-Za-z/+]{40})(?![0-9A-Za-z/+=])',
    looksReal: looksLikeBase64,
  },
  { name: 'a GitHub token', hint: 'gh[pousr]_', pattern: `gh[pousr]_${alphanumeric('36,251')}` },
  {
    name: 'a GitHub fine-grained token',
    hint: 'github_pat_',
    pattern: 'github_pat_([0-9A-Za-z_]{82})(?!\\w)',
  },
  {
    name: 'a GitLab token',
    hint: 'gl(?:pat|dt|rt|ptt|soat|agent)-',
    pattern: `gl[a-z]{2,5}-${base64url('20,64')}`,
  },
  {
    name: 'a Slack token',
    hint: 'xox[abeoprs]-',
    pattern: 'xox[abeoprs]-((?:\\d{1,20}-){1,6}[0-9A-Za-z-]{10,128})',
  },
  {
    name: 'a Slack app token',
    hint: 'xapp-',
    pattern: 'xapp-\\d-([0-9A-Z]{8,16}-\\d{8,16}-[0-9a-f]{32,128})',
  },
  {
    name: 'a Slack webhook',
    anchors: ['hooks.slack.com'],
    pattern:
      'hooks\\.slack\\.com/(?:services|workflows)/(T[0-9A-Z]{8,16}/B?[0-9A-Z]{8,16}/[0-9A-Za-z]{24})',
  },
  {
    name: 'a Stripe live key',
    hint: '[rs]k_live_',
    pattern: `[rs]k_live_${alphanumeric('24,247')}`,
  },
  { name: 'a Google API key', hint: 'AIza', pattern: `AIza${base64url(35)}` },
  { name: 'a Google OAuth secret', hint: 'GOCSPX-', pattern: `GOCSPX-${base64url(28)}` },
  { name: 'a Hugging Face token', hint: 'hf_', pattern: `hf_${alphanumeric(34)}` },
  {
    name: 'an OpenAI key',
    hint: 'sk-',
    pattern: `sk-(?:proj-|svcacct-|admin-)?([0-9A-Za-z_-]{20,100}T3BlbkFJ[0-9A-Za-z_-]{20,100})`,
  },
  {
    name: 'an Anthropic key',
    hint: 'sk-ant-',
    pattern: 'sk-ant-[a-z]{2,8}\\d{2}-([0-9A-Za-z_-]{80,128})',
  },
  { name: 'a Groq key', hint: 'gsk_', pattern: `gsk_${alphanumeric(52)}` },
  { name: 'an xAI key', hint: 'xai-', pattern: `xai-${alphanumeric(80)}` },
  { name: 'a Replicate token', hint: 'r8_', pattern: `r8_${alphanumeric(37)}` },
  { name: 'an npm token', hint: 'npm_', pattern: `npm_${alphanumeric(36)}` },
  {
    name: 'a PyPI token',
    hint: 'pypi-AgE',
    pattern: 'pypi-(AgEIcHlwaS5vcmc[0-9A-Za-z_-]{50,400})',
  },
  { name: 'a RubyGems key', hint: 'rubygems_', pattern: `rubygems_${hex(48)}` },
  {
    name: 'a Docker Hub token',
    hint: 'dckr_[po]at_',
    pattern: `dckr_[po]at_${base64url('27,64')}`,
  },
  {
    name: 'a SendGrid key',
    hint: 'SG\\.',
    pattern: 'SG\\.([0-9A-Za-z_-]{22}\\.[0-9A-Za-z_-]{43})(?![0-9A-Za-z_-])',
  },
  {
    name: 'a Shopify token',
    hint: 'shp(?:at|ca|pa|ss)_',
    pattern: 'shp(?:at|ca|pa|ss)_([0-9a-fA-F]{32})(?![0-9A-Za-z])',
  },
  { name: 'a DigitalOcean token', hint: 'do[opr]_v1_', pattern: `do[opr]_v1_${hex(64)}` },
  { name: 'a Vault token', hint: 'hv[sbr]\\.', pattern: `hv[sbr]\\.${base64url('90,300')}` },
  {
    name: 'a Linear key',
    hint: 'lin_(?:api|oauth)_',
    pattern: `lin_(?:api|oauth)_${alphanumeric('40,64')}`,
  },
  {
    name: 'a Discord bot token',
    hint: '[MNO][0-9A-Za-z_-]{23,27}\\.[0-9A-Za-z_-]{6}\\.',
    pattern:
      '[MNO][0-9A-Za-z_-]{23,27}\\.[0-9A-Za-z_-]{6}\\.([0-9A-Za-z_-]{27,38})(?![0-9A-Za-z_-])',
    looksReal: looksLikeBase64,
  },
  {
    name: 'a Discord webhook',
    anchors: ['api/webhooks/'],
    pattern: `discord(?:app)?\\.com/api/webhooks/\\d{17,20}/${base64url('60,80')}`,
  },
  {
    name: 'a Telegram bot token',
    hint: '\\d{8,10}:AA',
    pattern: `\\d{8,10}:(AA[0-9A-Za-z_-]{33})(?![0-9A-Za-z_-])`,
  },
  { name: 'a Databricks token', hint: 'dapi', pattern: `dapi${hex(32)}` },
  {
    name: 'a Grafana token',
    hint: 'gl(?:sa|c)_',
    pattern: 'gl(?:sa|c)_([0-9A-Za-z+/_=]{32,200})',
  },
  { name: 'a New Relic key', hint: 'NRAK-', pattern: 'NRAK-([0-9A-Z]{27})(?![0-9A-Za-z])' },
  { name: 'an Atlassian token', hint: 'ATATT3', pattern: 'ATATT3([0-9A-Za-z_=-]{180,220})' },
  { name: 'a Notion token', hint: 'ntn_', pattern: `ntn_${alphanumeric('40,50')}` },
  { name: 'a Figma token', hint: 'figd_', pattern: `figd_${base64url('36,60')}` },
  {
    name: 'a PlanetScale token',
    hint: 'pscale_(?:tkn|pw|oauth)_',
    pattern: 'pscale_(?:tkn|pw|oauth)_([0-9A-Za-z_.-]{32,64})',
  },
  { name: 'a Pulumi token', hint: 'pul-', pattern: `pul-${hex(40)}` },
  {
    name: 'a Sentry token',
    hint: 'sntry[su]_',
    pattern: 'sntry[su]_([0-9A-Za-z+/=_]{60,400})',
  },
  { name: 'a Supabase token', hint: 'sbp_', pattern: `sbp_${hex(40)}` },
  { name: 'a Postman key', hint: 'PMAK-', pattern: 'PMAK-([0-9a-f]{24}-[0-9a-f]{34})' },
  {
    name: 'a Tailscale key',
    hint: 'tskey-',
    pattern: 'tskey-[a-z]{3,8}-([0-9A-Za-z]{8,32}-[0-9A-Za-z]{16,64})',
  },
  {
    name: 'an Airtable token',
    hint: 'pat[0-9A-Za-z]{14}\\.',
    pattern: `pat[0-9A-Za-z]{14}\\.${hex(64)}`,
  },
  { name: 'a Contentful token', hint: 'CFPAT-', pattern: `CFPAT-${base64url(43)}` },
  {
    name: 'a Square token',
    hint: 'sq0(?:atp|csp)-',
    pattern: `sq0(?:atp|csp)-${base64url('22,43')}`,
  },
  { name: 'a Mailgun key', hint: 'key-', pattern: `key-${hex(32)}` },
  {
    name: 'a Mailchimp key',
    hint: '[0-9a-f]{32}-us',
    pattern: '([0-9a-f]{32})-us\\d{1,2}(?![0-9A-Za-z])',
  },
  {
    name: 'an Azure storage key',
    anchors: ['AccountKey='],
    pattern: 'AccountKey=([0-9A-Za-z/+]{86}==)',
    looksReal: looksLikeBase64,
  },
  {
    name: 'a Doppler token',
    hint: 'dp\\.',
    pattern: `dp\\.(?:pt|st|ct|sa|scim|audit)\\.(?:[0-9a-z_-]{2,35}\\.)?${alphanumeric('40,44')}`,
  },
  { name: 'an age key', hint: 'AGE-SECRET-KEY-1', pattern: 'AGE-SECRET-KEY-1([0-9A-Z]{58})' },
  {
    name: 'a private key',
    anchors: ['PRIVATE KEY'],
    // Programs that read keys contain the first line as well, so some key data is required. It may be quoted or
    // preceded by headers such as DEK-Info.
    pattern:
      '-----BEGIN (?:RSA |EC |DSA |OPENSSH |ENCRYPTED |PGP )?PRIVATE KEY(?: BLOCK)?-----(?:\\\\[nr]|["\'+,;\\s\\\\]|(?:Proc-Type|DEK-Info|Version|Comment): [^\\n\\\\]{0,80}(?:\\n|\\\\[nr])){1,64}([0-9A-Za-z+/]{24})',
  },
  {
    name: 'the password of a database',
    anchors: ['://'],
    pattern: `(?:postgres(?:ql)?|mysql|mariadb|mongodb(?:\\+srv)?|rediss?|amqps?|mssql|clickhouse)://${URL_PARTS}`,
    looksReal: looksLikeRealPassword,
  },
  {
    name: 'a password in an address',
    anchors: ['://'],
    pattern: `https?://${URL_PARTS}`,
    looksReal: looksLikeRealPassword,
  },
];
