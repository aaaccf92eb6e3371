/** File previews of the dashboard: Markdown, tables, notebooks and patches. */
import { createElement } from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import ReactMarkdown from 'react-markdown';
import { expect, test } from 'vitest';
import {
  rehypePlugins,
  remarkPlugins,
} from '../../src/dashboard/pages/repository/markdown-plugins.ts';
import { parseTable } from '../../src/dashboard/pages/repository/parse-table.ts';
import { findChangedWords, parsePatch } from '../../src/dashboard/pages/repository/patch.ts';
import { readNotebook } from '../../src/dashboard/pages/repository/read-notebook.ts';

function renderMarkdown(text: string): string {
  const plugins = { remarkPlugins: remarkPlugins(text), rehypePlugins };
  return renderToStaticMarkup(createElement(ReactMarkdown, plugins, text));
}

test('the children of void elements follow them', () => {
  expect(renderMarkdown('<svg><input>a<b>c</b></input><br>d</br></svg>')).toMatch(
    /<input[^>]*\/>a<b>c<\/b>/,
  );
  expect(renderMarkdown('<svg><img><input>a</input></img></svg>')).toContain('a');
});

test('the checkbox of a task has the text of the task as its name', () => {
  const html = renderMarkdown('- [x] write **it**\n  - [ ] below\n- [ ] run\n\n  more\n');
  expect([...html.matchAll(/aria-label="([^"]*)"/g)].map(([, name]) => name)).toEqual([
    'write it',
    'below',
    'run',
  ]);
});

test('quotes that begin with a marker are alerts', () => {
  const html = renderMarkdown(
    '> [!NOTE]\n> Read *this*.\n\n> [!warning]\n>\n> Stop.\n\n> [!NOTE] inline\n\n> [!OTHER]\n> no\n',
  );
  expect([...html.matchAll(/data-alert="([^"]*)"/g)].map(([, kind]) => kind)).toEqual([
    'note',
    'warning',
  ]);
  expect(html).toContain('<p>Read <em>this</em>.</p>');
  expect(html).toContain('[!NOTE] inline');
});

test('a table of too many cells is shown as text', () => {
  const table = (columns: number, rows: number) =>
    `| head ${'|a'.repeat(columns - 1)}|\n${'|-'.repeat(columns)}|\n${'|b|\n'.repeat(rows)}`;
  expect(renderMarkdown(table(3, 2))).toMatch(/^<table>/);
  expect(renderMarkdown(`> ${table(1_000, 1_000)}`.replaceAll('\n', '\n> '))).toMatch(
    /^<blockquote>\s*<pre><code>\| head \|a/,
  );
});

test('CSV and tab-separated values are parsed by RFC 4180', () => {
  for (const [text, rows] of [
    [
      'a,b\n1,2\n',
      [
        ['a', 'b'],
        ['1', '2'],
      ],
    ],
    [
      'a,b\r\n1,2',
      [
        ['a', 'b'],
        ['1', '2'],
      ],
    ],
    ['"a,""b""\nc",d\n', [['a,"b"\nc', 'd']]],
    [
      'a,\n,b\n',
      [
        ['a', ''],
        ['', 'b'],
      ],
    ],
    ['a,', [['a', '']]],
    ['a\n\n\nb', [['a'], ['b']]],
    ['"never closed, b\nc', [['never closed, b\nc']]],
    ['"a"b,c', [['ab', 'c']]],
    ['""', []],
    ['', []],
  ] as const)
    expect([text, parseTable(text, ',', 100)]).toEqual([text, rows]);
  expect(parseTable('a\tb,c\n', '\t', 100)).toEqual([['a', 'b,c']]);
  expect(parseTable('a\n'.repeat(1_000), ',', 7)).toHaveLength(7);
  expect(parseTable('"'.repeat(2 ** 20), ',', 7)).toHaveLength(1);
});

test('a notebook with malformed parts is parsed', () => {
  const cells = [
    { cell_type: 'markdown', source: ['# Hello\n', 'there'] },
    {
      cell_type: 'code',
      source: 'print(1)',
      execution_count: 7,
      outputs: [
        { output_type: 'stream', name: 'stdout', text: ['1\n'] },
        {
          output_type: 'display_data',
          data: { 'image/png': 'aGVsbG8=\n', 'text/plain': 'a plot' },
        },
        { output_type: 'display_data', data: { 'text/html': '<script>x</script>' } },
        { output_type: 'execute_result', data: { 'image/png': '"><script>', 'text/plain': '2' } },
        { output_type: 'error', ename: 'E', evalue: 'v', traceback: [] },
      ],
    },
    null,
    { cell_type: {}, source: 7, outputs: [null, { data: [] }] },
  ];
  const read = readNotebook(JSON.stringify({ nbformat: 4, cells, metadata: null }));
  expect(read).toEqual({
    language: 'python',
    cells: [
      { kind: 'markdown', source: '# Hello\nthere', count: null, outputs: [] },
      {
        kind: 'code',
        source: 'print(1)',
        count: 7,
        outputs: [
          { kind: 'text', text: '1', isError: false },
          { kind: 'image', source: 'data:image/png;base64,aGVsbG8=', text: 'a plot' },
          { kind: 'text', text: '(HTML is not shown)', isError: false },
          { kind: 'text', text: '2', isError: false },
          { kind: 'text', text: 'E: v', isError: true },
        ],
      },
      { kind: 'raw', source: '', count: null, outputs: [] },
      { kind: 'raw', source: '', count: null, outputs: [] },
    ],
  });
  for (const text of ['', 'null', '[]', '{"cells": []}', '{"nbformat": 3, "worksheets": []}', '{'])
    expect([text, readNotebook(text)]).toEqual([text, null]);
});

test('changed words are marked in lines that replace each other', () => {
  const marked = (patch: string) => {
    const lines = parsePatch(patch);
    return [...findChangedWords(lines)].map(([line, spans]) =>
      spans.map(({ from, to }) => lines[line]?.text.slice(from, to)),
    );
  };
  expect(marked('@@ -1 +1 @@\n-const answer = 41;\n+const reply = 41 + 1;\n')).toEqual([
    ['answer'],
    ['reply', ' + 1'],
  ]);
  // Lines that differ too much, differ in number, or are too long are not compared.
  expect(marked('@@ -1 +1 @@\n-one two three\n+completely different words\n')).toEqual([]);
  expect(marked('@@ -1 +1,2 @@\n-a b c\n+a b d\n+e\n')).toEqual([]);
  expect(marked(`@@ -1 +1 @@\n-${'a '.repeat(600)}\n+${'a '.repeat(600)}b\n`)).toEqual([]);
});
