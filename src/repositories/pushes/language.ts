/**
 * Detects the language of a repository: the language with the most bytes, according to the data of GitHub's Linguist.
 *
 * Only names and sizes are used; contents are not read. If several languages claim an extension, the most common one
 * wins. Vendored, generated and documentation files do not count, and neither do data and prose.
 */
import type { Language } from 'linguist-languages';

/** For extensions that several languages claim, where the most popular claimant is not the right answer. */
const PREFERRED: Record<string, string> = {
  '.as': 'ActionScript',
  '.asm': 'Assembly',
  '.bas': 'Visual Basic 6.0',
  '.cl': 'Common Lisp',
  '.cls': 'TeX',
  '.d': 'D',
  '.ex': 'Elixir',
  '.f': 'Fortran',
  '.for': 'Fortran',
  '.frag': 'GLSL',
  '.fs': 'F#',
  '.gd': 'GDScript',
  '.h': 'C',
  '.inc': 'PHP',
  '.l': 'Lex',
  '.lisp': 'Common Lisp',
  '.lsp': 'Common Lisp',
  '.m': 'Objective-C',
  '.md': 'Markdown',
  '.ml': 'OCaml',
  '.mod': 'Modula-2',
  '.nu': 'Nushell',
  '.p': 'OpenEdge ABL',
  '.pp': 'Puppet',
  '.pro': 'Prolog',
  '.r': 'R',
  '.s': 'Assembly',
  '.scm': 'Scheme',
  '.sql': 'SQL',
  '.st': 'Smalltalk',
  '.tpl': 'Smarty',
  '.txt': 'Text',
  '.v': 'Verilog',
  '.vba': 'VBA',
  '.yaml': 'YAML',
  '.yml': 'YAML',
};

/** Linguist's list of popular languages. */
const POPULAR = new Set(
  `C C# C++ CoffeeScript CSS Dart Elixir Go Groovy HTML Java JavaScript Kotlin Objective-C Perl PHP PowerShell
   Python Ruby Rust Scala Shell Swift TypeScript`.split(/\s+/),
);

const EXCLUDED = [
  // Vendored.
  /(^|\/)(node_modules|bower_components|vendor|vendors|third[-_]?party|external|deps|Godeps|Pods|Carthage)\//i,
  /(^|\/)(dist|\.yarn|\.venv|venv|site-packages|\.gradle|\.mvn)\//i,
  /(^|\/)(gradlew|mvnw|configure|config\.guess|config\.sub|ltmain\.sh)(\.bat|\.cmd)?$/,
  /(^|\/)(jquery|bootstrap|angular|d3|three)([-.][\d.]+)?([-.](min|bundle|slim))*\.(js|css)$/i,
  // Generated.
  /[-.](min|bundle|chunk)\.(js|mjs|css)$/i,
  /\.(pb|g|freezed|generated|designer)\.(go|dart|cs|cc|h|py|ts|js)$/i,
  /_pb2(_grpc)?\.pyi?$|(^|\/)zz_generated\.|\.d\.ts$/,
  // Documentation and examples.
  /(^|\/)(docs?|documentation|man|javadoc|examples?|samples?|demos?)\//i,
];

/** C, C++ and Objective-C share the header extension. Headers count for the language of the sources. */
const HEADER_SUFFIX = '.h';
const HEADER_OWNERS = ['C++', 'Objective-C'];

type Catalog = { byName: Map<string, string>; byExtension: Map<string, string> };
let catalog: Promise<Catalog> | undefined;

/**
 * Sums the bytes per language over the files of a tree.
 *
 *   const count = await countLanguages();
 *   count.add('src/main.c', 1024);
 *   count.largest();  // 'C'
 */
export async function countLanguages() {
  catalog ??= loadCatalog();
  const { byName, byExtension } = await catalog;
  const bytes = new Map<string, number>();
  let headerBytes = 0;
  const languageOf = (path: string): string | undefined => {
    const name = path.slice(path.lastIndexOf('/') + 1);
    const named = byName.get(name);
    if (named !== undefined) return named;
    // The longest known extension: `.html.erb` before `.erb`.
    for (let dot = name.indexOf('.'); dot >= 0; dot = name.indexOf('.', dot + 1)) {
      const language = byExtension.get(name.slice(dot).toLowerCase());
      if (language !== undefined) return language;
    }
    return undefined;
  };
  return {
    add(path: string, size: number): void {
      if (EXCLUDED.some((pattern) => pattern.test(path))) return;
      if (path.endsWith(HEADER_SUFFIX)) headerBytes += size;
      const language = languageOf(path);
      if (language) bytes.set(language, (bytes.get(language) ?? 0) + size);
    },
    largest(): string | null {
      const owner = HEADER_OWNERS.find((one) => (bytes.get(one) ?? 0) > bytesOf('C') - headerBytes);
      if (owner && headerBytes > 0) {
        bytes.set('C', bytesOf('C') - headerBytes);
        bytes.set(owner, bytesOf(owner) + headerBytes);
        headerBytes = 0;
      }
      const [first] = [...bytes].sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1));
      return first && first[1] > 0 ? first[0] : null;
    },
  };

  function bytesOf(language: string): number {
    return bytes.get(language) ?? 0;
  }
}

/**
 * Loaded lazily, with the first push, because 800 small modules take a quarter of a second. An empty name means: not
 * counted.
 */
async function loadCatalog(): Promise<Catalog> {
  const languages = Object.values(await import('linguist-languages')) as Language[];
  const byName = new Map<string, string>();
  const claims = new Map<string, Language[]>();
  for (const language of languages) {
    for (const name of language.filenames ?? []) byName.set(name, languageName(language));
    for (const extension of language.extensions ?? []) {
      const key = extension.toLowerCase();
      claims.set(key, [...(claims.get(key) ?? []), language]);
    }
  }
  const byExtension = new Map(
    [...claims].map(([extension, all]) => {
      const preferred = all.find(({ name }) => name === PREFERRED[extension]);
      const popular = all.find(({ name }) => POPULAR.has(name));
      const counted = all.find((language) => languageName(language) !== '');
      return [extension, languageName(preferred ?? popular ?? counted ?? (all[0] as Language))];
    }),
  );
  return { byName, byExtension };
}

/** TSX counts as TypeScript; data and prose are not counted. */
function languageName({ name, type, group }: Language): string {
  return type === 'programming' || type === 'markup' ? (group ?? name) : '';
}
