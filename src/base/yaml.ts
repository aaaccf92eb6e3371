/**
 * Reads YAML 1.2 that users wrote, with bounds on its size, finds the place of a value in the text, and describes what a
 * schema refuses.
 */
import {
  Composer,
  type CST,
  type Document,
  isAlias,
  isMap,
  isPair,
  isScalar,
  isSeq,
  Lexer,
  LineCounter,
  type Node,
  Parser,
  visit,
} from 'yaml';
import type { z } from 'zod';

/** Line and column count from 1. */
export type Problem = { line: number; column: number; message: string };

export type Path = readonly PropertyKey[];

export const MAX_FILE_BYTES = 128 * 1024;
/** The library takes quadratic time for deep input, and its composer is recursive, so the stack could overflow. */
const MAX_DEPTH = 16;
/** Words, signs, spaces and line ends. The library takes 50 ms for this many, and a file of 100 jobs has about 10,000. */
const MAX_LEXEMES = 25_000;
export const MAX_PROBLEMS = 50;
const ESCAPE =
  /\\(?:[0abefnrtvNLP_ "/\\\t\r\n]|x[\dA-Fa-f]{2}|u[\dA-Fa-f]{4}|U00(?:0[\dA-Fa-f]|10)[\dA-Fa-f]{4})/g;

export type ReadYaml = {
  /** Undefined if the text cannot be read. */
  value: unknown;
  problems: Problem[];
  /** The place of a value, or of the nearest value around it. `isKey`: of its key. */
  locate(path: Path, isKey?: boolean): Pick<Problem, 'line' | 'column'>;
};

export function readYaml(text: string): ReadYaml {
  const lines = new LineCounter();
  const at = (offset: number) => {
    const { line, col } = lines.linePos(offset);
    return { line: Math.max(1, line), column: Math.max(1, col) };
  };
  const problems: Problem[] = [];
  const report = (offset: number, message: string) => {
    if (problems.length < MAX_PROBLEMS) problems.push({ ...at(offset), message });
  };
  const failed = () => ({ value: undefined, problems, locate: () => ({ line: 1, column: 1 }) });
  if (Buffer.byteLength(text) > MAX_FILE_BYTES) {
    problems.push({
      line: 1,
      column: 1,
      message: `The file must not be larger than ${MAX_FILE_BYTES / 1024} KiB`,
    });
    return failed();
  }
  const { tokens, tooDeep, tooMany, tooWrong } = parse(text, lines);
  if (tooDeep !== null)
    report(tooDeep, `Values must not be nested deeper than ${MAX_DEPTH} levels`);
  if (tooMany !== null)
    report(tooMany, `The file must have at most ${MAX_LEXEMES} words and signs`);
  if (tooWrong !== null)
    report(
      tooWrong,
      `The text in quotes has more than ${MAX_PROBLEMS} escapes that YAML does not know`,
    );
  if (problems.length > 0) return failed();
  // The library compares each key with all others to find duplicates; `checkNodes` takes linear time.
  const options = { version: '1.2', uniqueKeys: false, prettyErrors: false } as const;
  const documents = [...new Composer(options).compose(tokens, true, text.length)];
  const [document, second] = documents;
  if (!document) return failed();
  for (const { pos, message } of document.errors) report(pos[0], message);
  if (second) report(second.range[0], 'The file must have one document');
  checkNodes(document, report);
  if (problems.length > 0) return failed();
  return {
    value: document.toJS(),
    problems,
    locate: (path, isKey = false) => at(findOffset(document.contents, path, isKey)),
  };
}

type Parsed = {
  tokens: CST.Token[];
  /** The offsets at which the text has too much of something, or null. */
  tooDeep: number | null;
  tooMany: number | null;
  tooWrong: number | null;
};

/** Stops at the limits, and after enough errors. */
function parse(text: string, lines: LineCounter): Parsed {
  const parser = new Parser(lines.addNewLine);
  const tokens: CST.Token[] = [];
  let lexemes = 0;
  let errors = 0;
  let wrongEscapes = 0;
  const upTo: Parsed = { tokens, tooDeep: null, tooMany: null, tooWrong: null };
  lines.addNewLine(0);
  for (const lexeme of new Lexer().lex(text)) {
    for (const token of parser.next(lexeme)) {
      tokens.push(token);
      if (token.type === 'error') errors++;
    }
    lexemes++;
    // A document and a scalar are on the stack too.
    if (parser.stack.length > MAX_DEPTH + 2) return { ...upTo, tooDeep: parser.offset };
    if (lexemes > MAX_LEXEMES) return { ...upTo, tooMany: parser.offset };
    // The composer makes an error with a stack for each.
    if (lexeme.startsWith('"')) wrongEscapes += countWrongEscapes(lexeme);
    if (wrongEscapes > MAX_PROBLEMS) return { ...upTo, tooWrong: parser.offset - lexeme.length };
    if (errors > MAX_PROBLEMS) break;
  }
  tokens.push(...parser.end());
  return { ...upTo, tooDeep: findTooDeep(tokens) };
}

function countWrongEscapes(quoted: string): number {
  return quoted.replaceAll(ESCAPE, '').split('\\').length - 1;
}

/** The offset of the first value below `MAX_DEPTH`, or null. */
function findTooDeep(tokens: readonly CST.Token[]): number | null {
  const stack: { token: CST.Token; depth: number }[] = tokens.map((token) => ({ token, depth: 0 }));
  for (let top = stack.pop(); top; top = stack.pop()) {
    const { token, depth } = top;
    if (depth > MAX_DEPTH) return token.offset;
    if (token.type === 'document' && token.value) stack.push({ token: token.value, depth });
    if (!('items' in token)) continue;
    for (const { key, value } of token.items)
      for (const inner of [key, value]) if (inner) stack.push({ token: inner, depth: depth + 1 });
  }
  return null;
}

function checkNodes(document: Document, report: (offset: number, message: string) => void): void {
  visit(document, {
    Node(_, node) {
      const offset = node.range?.[0] ?? 0;
      if (isAlias(node)) report(offset, 'Aliases are not supported');
      else if (node.tag && /^!(?!$)/.test(node.tag)) report(offset, 'Tags are not supported');
      if (!isMap(node)) return;
      const seen = new Set<unknown>();
      for (const { key } of node.items) {
        const name = isScalar(key) ? String(key.value) : null;
        const place = (key as Node | null)?.range?.[0] ?? offset;
        if (name === null) report(place, 'Keys must be text');
        else if (seen.has(name)) report(place, `The key ${quote(name)} is given twice`);
        seen.add(name);
      }
    },
  });
}

function findOffset(root: unknown, path: Path, isKey: boolean): number {
  let node = root;
  let offset = (root as Node | null)?.range?.[0] ?? 0;
  for (const [i, part] of path.entries()) {
    const isLast = i === path.length - 1;
    if (isMap(node)) {
      const pair = node.items.find(
        ({ key }) => isScalar(key) && String(key.value) === String(part),
      );
      if (!pair || !isPair(pair)) return offset;
      const value = pair.value as Node | null;
      const isEmpty = !value || (isScalar(value) && value.source === '');
      const found = (isLast && isKey) || isEmpty || isMap(value) || isSeq(value) ? pair.key : value;
      offset = (found as Node).range?.[0] ?? offset;
      node = value;
    } else if (isSeq(node)) {
      node = node.items[Number(part)];
      offset = (node as Node | undefined)?.range?.[0] ?? offset;
    } else return offset;
  }
  return offset;
}

/** A text of the file in a message, shortened. */
export function quote(text: string): string {
  return JSON.stringify(text.length > 60 ? `${text.slice(0, 60)}…` : text);
}

type Issue = z.core.$ZodIssue;

/** Problems of a value of the file that a schema has refused, in the order of the file. */
export function describeIssues(yaml: ReadYaml, issues: readonly Issue[]): Problem[] {
  // Finding the place of a problem takes time, and there may be as many as keys.
  return issues
    .slice(0, MAX_PROBLEMS)
    .flatMap((issue) => describeIssue(yaml, issue))
    .slice(0, MAX_PROBLEMS)
    .sort((a, b) => a.line - b.line || a.column - b.column);
}

function describeIssue(yaml: ReadYaml, issue: Issue): Problem[] {
  const { path } = issue;
  if (issue.code === 'unrecognized_keys')
    return issue.keys.slice(0, MAX_PROBLEMS).map((key) => ({
      ...yaml.locate([...path, key], true),
      message: `Unknown key ${quote(key)}${path.length > 0 ? ` in ${describePath(path)}` : ''}`,
    }));
  if (issue.code === 'invalid_key')
    return [
      { ...yaml.locate(path, true), message: `${describePath(path)}: ${issue.issues[0]?.message}` },
    ];
  const inside = issue.code === 'invalid_union' ? findIssuesInside(issue) : [];
  if (inside.length > 0) return inside.flatMap((one) => describeIssue(yaml, one));
  const message = `${describePath(path) || 'The file'}: ${describeValue(issue)}`;
  return [{ ...yaml.locate(path), message }];
}

/** The problems within a value that has the type of one of the alternatives; none if it has another type. */
function findIssuesInside({ errors, path }: z.core.$ZodIssueInvalidUnion): Issue[] {
  const isInside = (issue: Issue) => issue.path.length > 0 || issue.code === 'unrecognized_keys';
  const inside = errors.find((issues) => issues.every(isInside)) ?? [];
  return inside.map((issue) => ({ ...issue, path: [...path, ...issue.path] }));
}

/** Says what the value must be, in the style of the other messages about the file. */
function describeValue(issue: Issue): string {
  if (issue.code === 'invalid_value')
    return `must be one of ${issue.values.map(String).join(', ')}`;
  if (issue.code === 'too_small' && issue.minimum === 1 && issue.origin !== 'number')
    return 'must not be empty';
  if (issue.code === 'too_small') return `must be at least ${issue.minimum}`;
  if (issue.code === 'too_big') {
    const unit = UNITS[issue.origin];
    return unit ? `must have at most ${issue.maximum} ${unit}` : `must be at most ${issue.maximum}`;
  }
  if (issue.code !== 'invalid_type') return issue.message;
  if (/received undefined$/.test(issue.message)) return 'is required';
  return `must be ${TYPES[issue.expected] ?? issue.expected}`;
}

const UNITS: Readonly<Record<string, string>> = { array: 'entries', string: 'characters' };

/** The types of YAML, for users. */
const TYPES: Readonly<Record<string, string>> = {
  array: 'a list, such as [a, b]',
  object: 'a mapping with keys',
  record: 'a mapping with keys',
  string: 'text',
  number: 'a number',
  int: 'a whole number',
  boolean: 'true or false',
};

function describePath(path: Path): string {
  const parts = path.map((part) =>
    typeof part === 'number' ? `[${part}]` : `.${shorten(String(part))}`,
  );
  return parts.join('').slice(1);
}

function shorten(text: string): string {
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}
