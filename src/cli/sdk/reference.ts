/** `npm run docs:sdk`: writes docs/typescript.md from the comments of the library. A test checks that it is up to date. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
// The installed version of TypeScript has no stable interface to its parser.
import { type ParseResult, parseSync } from 'rolldown/utils';

export const PAGE = join(import.meta.dirname, '../../../docs/typescript.md');

/** The page. It has all exports of `loam.ts`: `Client`, other classes and functions, errors, and then types. */
export function renderReference(): string {
  const entry = new Source('./loam.ts');
  const exported = entry.exports().map(({ name, file }) => new Source(file).declaration(name));
  const rank = ({ name, kind }: Declaration) =>
    name === 'Client' ? -1 : ['class', 'function', 'error', 'type'].indexOf(kind);
  const sections = exported
    .toSorted((a, b) => rank(a) - rank(b))
    .map(({ name, text }) => `## ${name}\n\n${text}\n`);
  return [renderHeader(entry.docAt(entry.firstExport)), ...sections].join('\n');
}

function renderHeader(introduction: string): string {
  return `<!-- Generated from src/cli/sdk by "npm run docs:sdk". -->

# TypeScript

${introduction}

Each server has the file of its version, and its types:

\`\`\`sh
curl -O $LOAM/sdk/loam.js -O $LOAM/sdk/loam.d.ts
\`\`\`
`;
}

type Statement = ParseResult['program']['body'][number];
type Declared = NonNullable<Extract<Statement, { type: 'ExportNamedDeclaration' }>['declaration']>;
type Class = Extract<Declared, { superClass: unknown }>;
type Member = Class['body']['body'][number];

type Declaration = {
  name: string;
  kind: 'class' | 'function' | 'error' | 'type';
  /** Its section of the page. */
  text: string;
};

/** A file of the library. */
class Source {
  readonly #path: string;
  readonly #text: string;
  readonly #statements: readonly Statement[];
  readonly #comments: ParseResult['comments'];

  constructor(path: string) {
    this.#path = path;
    this.#text = readFileSync(join(import.meta.dirname, path), 'utf8');
    const { program, comments } = parseSync(path, this.#text);
    this.#statements = program.body;
    this.#comments = comments;
  }

  get firstExport(): number {
    return this.#statements.find(({ type }) => type === 'ExportNamedDeclaration')?.start ?? 0;
  }

  /** The names that the file exports from others. */
  exports(): { name: string; file: string }[] {
    return this.#statements.flatMap((statement) => {
      if (statement.type !== 'ExportNamedDeclaration' || !statement.source) return [];
      const file = statement.source.value;
      return statement.specifiers.map(({ local }) => ({ name: this.#slice(local), file }));
    });
  }

  declaration(name: string): Declaration {
    for (const statement of this.#statements) {
      if (statement.type !== 'ExportNamedDeclaration') continue;
      const { declaration: node } = statement;
      if (!node || !('id' in node) || !node.id || this.#slice(node.id) !== name) continue;
      const doc = this.docAt(statement.start);
      switch (node.type) {
        case 'ClassDeclaration': {
          const isError = node.superClass !== null;
          return {
            name,
            kind: isError ? 'error' : 'class',
            text: this.#describeClass(name, node, doc),
          };
        }
        case 'FunctionDeclaration': {
          const signature = this.#slice({ start: node.start, end: node.body?.start ?? node.end });
          return {
            name,
            kind: 'function',
            text: `${codeBlock(signature.replace('async ', ''))}\n\n${doc}`,
          };
        }
        case 'TSTypeAliasDeclaration':
          return {
            name,
            kind: 'type',
            text: [doc, codeBlock(this.#slice(node))].filter(Boolean).join('\n\n'),
          };
      }
    }
    throw new Error(`${this.#path} declares no ${name}`);
  }

  #describeClass(name: string, node: Class, doc: string): string {
    if (doc === '') throw new Error(`${name} has no comment`);
    const sections = [doc];
    const fields: string[] = [];
    const methods: string[] = [];
    for (const member of node.body.body) {
      if (!('key' in member) || member.key.type !== 'Identifier' || member.override) continue;
      const key = this.#slice(member.key);
      const memberDoc = this.docAt(member.start);
      if (memberDoc.startsWith('@internal')) continue;
      const field = this.#fieldOf(member);
      if (field !== null) {
        fields.push(`- \`${field}\`${memberDoc && `: ${memberDoc.replaceAll('\n', '\n  ')}`}`);
        continue;
      }
      // Programs create clients only; other objects come from a client.
      if (key === 'constructor' && name !== 'Client') continue;
      if (memberDoc === '') throw new Error(`${name}.${key} has no comment`);
      const signature = codeBlock(this.#signatureOf(member));
      if (key === 'constructor')
        sections.push(signature.replace('constructor', `new ${name}`), memberDoc);
      else methods.push(`### ${name}.${key}\n\n${signature}\n\n${memberDoc}`);
    }
    return [...sections, fields.join('\n'), ...methods].filter(Boolean).join('\n\n');
  }

  /** A property or a getter, as `name: Type`; null for a method. */
  #fieldOf(member: Member): string | null {
    if (member.type === 'PropertyDefinition' && member.typeAnnotation)
      return this.#slice(member.key) + this.#slice(member.typeAnnotation);
    if (member.type === 'MethodDefinition' && member.kind === 'get' && member.value.returnType)
      return this.#slice(member.key) + this.#slice(member.value.returnType);
    return null;
  }

  #signatureOf(member: Member): string {
    if (member.type !== 'MethodDefinition' || !member.value.body) return this.#slice(member);
    const text = this.#slice({ start: member.start, end: member.value.body.start }).trim();
    return text.replace(/^(static )?(async )?\*?/, '$1').replaceAll('\n  ', '\n');
  }

  /** The comment right before a position, as Markdown; empty without one. */
  docAt(position: number): string {
    const comment = this.#comments.findLast(
      ({ end }) => end <= position && /^\n? *$/.test(this.#text.slice(end, position)),
    );
    if (!comment?.value.startsWith('*')) return '';
    const text = comment.value
      .slice(1)
      .replaceAll(/^ *\* ?/gm, '')
      .trim();
    return text
      .replaceAll(/\s*@throws /g, '\n\nThrows: ')
      .replaceAll(/\s*@returns /g, '\n\nReturns: ')
      .replaceAll(/\s*@param (\S+) /g, '\n\n`$1`: ')
      .trim();
  }

  #slice({ start, end }: { start: number; end: number }): string {
    return this.#text.slice(start, end);
  }
}

function codeBlock(text: string): string {
  return `\`\`\`ts\n${text.trim()}\n\`\`\``;
}

if (import.meta.main) writeFileSync(PAGE, renderReference());
