/**
 * Patterns of credentials that can be recognized by a prefix, which their issuer chose for scanners, or by the name
 * they are assigned to. The random part must look random, so false positives are rare.
 *
 * The scanned text is untrusted, so no pattern may be slow on any input. Every repetition is bounded, and a repeated
 * part can match in only one way: if a text could be divided in two ways, the time would grow exponentially in spite of
 * the bounds.
 */

export type Kind = {
  /** Completes the sentence "adds …", for example "a Stripe live key". */
  name: string;
  /**
   * Pattern of the prefix. The random part of such a kind has `RUN` token characters in a row, so prefixes are searched
   * only near such runs.
   */
  hint?: string;
  /** Substrings, one of which is in the secret or just before it. For kinds without a `hint`. */
  anchors?: readonly string[];
  /** The full pattern. Its first group, if any, is the random part. */
  form: string;
  /** Decides whether a match is a real secret; unset: `looksRandom` of the group. */
  isLive?: (match: RegExpExecArray) => boolean;
};

/** Text with fewer distinct characters is a placeholder, such as `ghp_xxxxxxxx`. */
const MIN_DISTINCT = 7;

export function looksRandom([whole, random = whole]: RegExpExecArray): boolean {
  return new Set(random).size >= MIN_DISTINCT && !/EXAMPLE/i.test(random);
}

/** For base64 keys of 40 characters or more, which could also be a path or a hexadecimal hash. */
function looksLikeBase64([, random = '']: RegExpExecArray): boolean {
  const mixed = /[A-Z]/.test(random) && /[a-z]/.test(random) && /\d/.test(random);
  return mixed && new Set(random).size >= 16 && !/EXAMPLE/i.test(random);
}

/** Passwords used in examples and test containers. */
const EXAMPLE_PASSWORD =
  /p(?:ass)?w(?:or)?d|^(?:(?:my|your|the|some)[-_]?)?(?:secret|token|key|test|guest|admin|root|user(?:name)?|postgres(?:ql)?|mysql|mongo(?:db)?|redis|rabbit(?:mq)?|change[-_]?me|default|dummy|fake|foo|bar|abc|qwerty|letmein|hunter2|hidden|removed|masked)[-_\d!]*$/i;
const TEMPLATE_PLACEHOLDER =
  /[${}<>[\]()%*`\\]|\.\.\.|…|x{4}|example|placeholder|redacted|your[-_]/i;
/** Hosts that are not publicly reachable, and hosts reserved for examples. */
const EXAMPLE_HOST =
  /^(?:[^.:]*|\d+\.\d+\.\d+\.\d+|.*\.(?:local|localhost|internal|test|invalid|example|lan)|(?:.*\.)?example\.(?:com|org|net)|(?:.*\.)?(?:host|server|domain|hostname|mydomain|yourdomain)\.(?:com|org|net|tld))$/i;

/** Checks user, password and host of a URL. */
function isLiveAddress([, user = '', password = '', host = '']: RegExpExecArray): boolean {
  const classes = [/[a-z]/, /[A-Z]/, /\d/, /[^0-9A-Za-z]/].filter((one) => one.test(password));
  return (
    classes.length > 1 &&
    new Set(password).size >= 6 &&
    !EXAMPLE_PASSWORD.test(password) &&
    !TEMPLATE_PLACEHOLDER.test(password) &&
    password.toLowerCase() !== user.toLowerCase() &&
    !EXAMPLE_HOST.test(host) &&
    !TEMPLATE_PLACEHOLDER.test(host)
  );
}

const ADDRESS = '([^\\s:/@"\'<>]{0,64}):([^\\s@/"\'<>]{3,128})@([\\w.-]{1,253})';
const hex = (length: number | string) => `([0-9a-f]{${length}})(?![0-9A-Za-z])`;
const word = (length: number | string) => `([0-9A-Za-z]{${length}})(?![0-9A-Za-z])`;
const dashed = (length: number | string) => `([0-9A-Za-z_-]{${length}})(?![0-9A-Za-z_-])`;

/** The patterns follow the documentation of the issuers. */
export const KINDS: readonly Kind[] = [
  { name: 'a Loam access token', hint: 'loam_pat_', form: `loam_pat_${word(46)}` },
  {
    name: 'an AWS access key id',
    hint: 'A(?:KIA|SIA)',
    form: 'A[KS]IA([A-Z2-7]{16})(?![0-9A-Za-z])',
  },
  {
    name: 'an AWS secret access key',
    anchors: ['secret_access_key', 'SECRET_ACCESS_KEY', 'ecretAccessKey'],
    form: '(?:secret_access_key|SECRET_ACCESS_KEY|[sS]ecretAccessKey)["\']?[ \\t]{0,8}(?:=>|[=:])[ \\t]{0,8}["\']?([0-9A-Za-z/+]{40})(?![0-9A-Za-z/+=])',
    isLive: looksLikeBase64,
  },
  { name: 'a GitHub token', hint: 'gh[pousr]_', form: `gh[pousr]_${word('36,251')}` },
  {
    name: 'a GitHub fine-grained token',
    hint: 'github_pat_',
    form: 'github_pat_([0-9A-Za-z_]{82})(?!\\w)',
  },
  {
    name: 'a GitLab token',
    hint: 'gl(?:pat|dt|rt|ptt|soat|agent)-',
    form: `gl[a-z]{2,5}-${dashed('20,64')}`,
  },
  {
    name: 'a Slack token',
    hint: 'xox[abeoprs]-',
    form: 'xox[abeoprs]-((?:\\d{1,20}-){1,6}[0-9A-Za-z-]{10,128})',
  },
  {
    name: 'a Slack app token',
    hint: 'xapp-',
    form: 'xapp-\\d-([0-9A-Z]{8,16}-\\d{8,16}-[0-9a-f]{32,128})',
  },
  {
    name: 'a Slack webhook',
    anchors: ['hooks.slack.com'],
    form: 'hooks\\.slack\\.com/(?:services|workflows)/(T[0-9A-Z]{8,16}/B?[0-9A-Z]{8,16}/[0-9A-Za-z]{24})',
  },
  { name: 'a Stripe live key', hint: '[rs]k_live_', form: `[rs]k_live_${word('24,247')}` },
  { name: 'a Google API key', hint: 'AIza', form: `AIza${dashed(35)}` },
  { name: 'a Google OAuth secret', hint: 'GOCSPX-', form: `GOCSPX-${dashed(28)}` },
  { name: 'a Hugging Face token', hint: 'hf_', form: `hf_${word(34)}` },
  {
    name: 'an OpenAI key',
    hint: 'sk-',
    form: `sk-(?:proj-|svcacct-|admin-)?([0-9A-Za-z_-]{20,100}T3BlbkFJ[0-9A-Za-z_-]{20,100})`,
  },
  {
    name: 'an Anthropic key',
    hint: 'sk-ant-',
    form: 'sk-ant-[a-z]{2,8}\\d{2}-([0-9A-Za-z_-]{80,128})',
  },
  { name: 'a Groq key', hint: 'gsk_', form: `gsk_${word(52)}` },
  { name: 'an xAI key', hint: 'xai-', form: `xai-${word(80)}` },
  { name: 'a Replicate token', hint: 'r8_', form: `r8_${word(37)}` },
  { name: 'an npm token', hint: 'npm_', form: `npm_${word(36)}` },
  { name: 'a PyPI token', hint: 'pypi-AgE', form: 'pypi-(AgEIcHlwaS5vcmc[0-9A-Za-z_-]{50,400})' },
  { name: 'a RubyGems key', hint: 'rubygems_', form: `rubygems_${hex(48)}` },
  { name: 'a Docker Hub token', hint: 'dckr_[po]at_', form: `dckr_[po]at_${dashed('27,64')}` },
  {
    name: 'a SendGrid key',
    hint: 'SG\\.',
    form: 'SG\\.([0-9A-Za-z_-]{22}\\.[0-9A-Za-z_-]{43})(?![0-9A-Za-z_-])',
  },
  {
    name: 'a Shopify token',
    hint: 'shp(?:at|ca|pa|ss)_',
    form: 'shp(?:at|ca|pa|ss)_([0-9a-fA-F]{32})(?![0-9A-Za-z])',
  },
  { name: 'a DigitalOcean token', hint: 'do[opr]_v1_', form: `do[opr]_v1_${hex(64)}` },
  { name: 'a Vault token', hint: 'hv[sbr]\\.', form: `hv[sbr]\\.${dashed('90,300')}` },
  { name: 'a Linear key', hint: 'lin_(?:api|oauth)_', form: `lin_(?:api|oauth)_${word('40,64')}` },
  {
    name: 'a Discord bot token',
    hint: '[MNO][0-9A-Za-z_-]{23,27}\\.[0-9A-Za-z_-]{6}\\.',
    form: '[MNO][0-9A-Za-z_-]{23,27}\\.[0-9A-Za-z_-]{6}\\.([0-9A-Za-z_-]{27,38})(?![0-9A-Za-z_-])',
    isLive: looksLikeBase64,
  },
  {
    name: 'a Discord webhook',
    anchors: ['api/webhooks/'],
    form: `discord(?:app)?\\.com/api/webhooks/\\d{17,20}/${dashed('60,80')}`,
  },
  {
    name: 'a Telegram bot token',
    hint: '\\d{8,10}:AA',
    form: `\\d{8,10}:(AA[0-9A-Za-z_-]{33})(?![0-9A-Za-z_-])`,
  },
  { name: 'a Databricks token', hint: 'dapi', form: `dapi${hex(32)}` },
  {
    name: 'a Grafana token',
    hint: 'gl(?:sa|c)_',
    form: 'gl(?:sa|c)_([0-9A-Za-z+/_=]{32,200})',
  },
  { name: 'a New Relic key', hint: 'NRAK-', form: 'NRAK-([0-9A-Z]{27})(?![0-9A-Za-z])' },
  { name: 'an Atlassian token', hint: 'ATATT3', form: 'ATATT3([0-9A-Za-z_=-]{180,220})' },
  { name: 'a Notion token', hint: 'ntn_', form: `ntn_${word('40,50')}` },
  { name: 'a Figma token', hint: 'figd_', form: `figd_${dashed('36,60')}` },
  {
    name: 'a PlanetScale token',
    hint: 'pscale_(?:tkn|pw|oauth)_',
    form: 'pscale_(?:tkn|pw|oauth)_([0-9A-Za-z_.-]{32,64})',
  },
  { name: 'a Pulumi token', hint: 'pul-', form: `pul-${hex(40)}` },
  {
    name: 'a Sentry token',
    hint: 'sntry[su]_',
    form: 'sntry[su]_([0-9A-Za-z+/=_]{60,400})',
  },
  { name: 'a Supabase token', hint: 'sbp_', form: `sbp_${hex(40)}` },
  { name: 'a Postman key', hint: 'PMAK-', form: 'PMAK-([0-9a-f]{24}-[0-9a-f]{34})' },
  {
    name: 'a Tailscale key',
    hint: 'tskey-',
    form: 'tskey-[a-z]{3,8}-([0-9A-Za-z]{8,32}-[0-9A-Za-z]{16,64})',
  },
  {
    name: 'an Airtable token',
    hint: 'pat[0-9A-Za-z]{14}\\.',
    form: `pat[0-9A-Za-z]{14}\\.${hex(64)}`,
  },
  { name: 'a Contentful token', hint: 'CFPAT-', form: `CFPAT-${dashed(43)}` },
  { name: 'a Square token', hint: 'sq0(?:atp|csp)-', form: `sq0(?:atp|csp)-${dashed('22,43')}` },
  { name: 'a Mailgun key', hint: 'key-', form: `key-${hex(32)}` },
  {
    name: 'a Mailchimp key',
    hint: '[0-9a-f]{32}-us',
    form: '([0-9a-f]{32})-us\\d{1,2}(?![0-9A-Za-z])',
  },
  {
    name: 'an Azure storage key',
    anchors: ['AccountKey='],
    form: 'AccountKey=([0-9A-Za-z/+]{86}==)',
    isLive: looksLikeBase64,
  },
  {
    name: 'a Doppler token',
    hint: 'dp\\.',
    form: `dp\\.(?:pt|st|ct|sa|scim|audit)\\.(?:[0-9a-z_-]{2,35}\\.)?${word('40,44')}`,
  },
  { name: 'an age key', hint: 'AGE-SECRET-KEY-1', form: 'AGE-SECRET-KEY-1([0-9A-Z]{58})' },
  {
    name: 'a private key',
    anchors: ['PRIVATE KEY'],
    // Programs that read keys contain the first line as well, so some key data is required. It may be quoted or
    // preceded by headers such as DEK-Info.
    form: '-----BEGIN (?:RSA |EC |DSA |OPENSSH |ENCRYPTED |PGP )?PRIVATE KEY(?: BLOCK)?-----(?:\\\\[nr]|["\'+,;\\s\\\\]|(?:Proc-Type|DEK-Info|Version|Comment): [^\\n\\\\]{0,80}(?:\\n|\\\\[nr])){1,64}([0-9A-Za-z+/]{24})',
  },
  {
    name: 'the password of a database',
    anchors: ['://'],
    form: `(?:postgres(?:ql)?|mysql|mariadb|mongodb(?:\\+srv)?|rediss?|amqps?|mssql|clickhouse)://${ADDRESS}`,
    isLive: isLiveAddress,
  },
  {
    name: 'a password in an address',
    anchors: ['://'],
    form: `https?://${ADDRESS}`,
    isLive: isLiveAddress,
  },
];
