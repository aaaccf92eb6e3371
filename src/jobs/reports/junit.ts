/**
 * Reads files of test results in the form of JUnit, which test runners of most languages write. Jobs write the files, so they may be
 * hostile: the parser knows no entities but those of XML itself, refuses a DOCTYPE, and is fed in small pieces, between
 * which this thread does other work.
 */
import { setImmediate as yieldToEventLoop } from 'node:timers/promises';
import { SaxesParser } from 'saxes';
import { CUT_MARGIN, type Mask, maskBeginning, maskEnd } from '../logs/mask.ts';

export type TestStatus = 'passed' | 'failed' | 'skipped';

export type TestCase = {
  status: TestStatus;
  name: string;
  className: string;
  suite: string;
  /** The file of its code, if the report says so. */
  file: string | null;
  durationMs: number | null;
  /** Why it failed or was skipped. */
  message: string | null;
  /** The text of the failure, such as a stack trace. */
  details: string | null;
  /** The end of what a failed test printed. */
  output: string | null;
};

/** Limits of the texts of a test, in characters. */
const MAX_NAME = 500;
const MAX_MESSAGE = 2_000;
const MAX_DETAILS = 16_000;
const MAX_OUTPUT = 8_000;
/** No test runner nests suites this deep. */
const MAX_DEPTH = 100;
/** The parser compares all attributes of an element at once: many of them would hold the thread. */
const MAX_ATTRIBUTES = 1_000;
/** Characters that are parsed at once, in about a millisecond. */
const STEP = 16_384;
/** The longest plausible time of a test. */
const MAX_SECONDS = 1e7;

/** Why a file is not a report of tests. The message completes the sentence "reports/a.xml cannot be read: …". */
export class NotJUnit extends Error {
  override name = 'NotJUnit';
}

/**
 * Parses one file, and masks its texts.
 * @param onTest called for each test; returns whether there is room for more
 * @throws NotJUnit
 */
export async function parseJUnit(
  bytes: Uint8Array,
  mask: Mask,
  onTest: (test: TestCase) => boolean,
): Promise<void> {
  const text = new TextDecoder().decode(bytes);
  const reader = new JUnitReader(mask, onTest);
  for (let at = 0; at < text.length && !reader.isFull; at += STEP) {
    if (at > 0) await yieldToEventLoop();
    reader.write(text.slice(at, at + STEP));
  }
  if (!reader.isFull) reader.end();
}

const FAILURES = ['failure', 'error'];

class JUnitReader {
  readonly #mask: Mask;
  readonly #onTest: (test: TestCase) => boolean;
  readonly #parser = new SaxesParser<{ position: false; xmlns: false }>({
    position: false,
    xmlns: false,
  });
  readonly #path: string[] = [];
  readonly #suites: string[] = [];
  #test: TestCase | undefined;
  /** The element of a test whose text is read, and its text so far. */
  #reading: { isOutput: boolean; text: string } | undefined;
  #isFull = false;

  constructor(mask: Mask, onTest: (test: TestCase) => boolean) {
    this.#mask = mask;
    this.#onTest = onTest;
    this.#parser.on('error', (error) => {
      throw new NotJUnit(`it is not valid XML (${this.#cut(error.message, 200)})`);
    });
    this.#parser.on('doctype', () => {
      throw new NotJUnit('it has a DOCTYPE');
    });
    let attributes = 0;
    this.#parser.on('opentagstart', () => {
      attributes = 0;
    });
    this.#parser.on('attribute', () => {
      if (attributes++ === MAX_ATTRIBUTES)
        throw new NotJUnit(`an element has more than ${MAX_ATTRIBUTES} attributes`);
    });
    this.#parser.on('opentag', ({ name, attributes }) => this.#open(name, attributes));
    this.#parser.on('closetag', ({ name }) => this.#close(name));
    const addText = (text: string) => this.#addText(text);
    this.#parser.on('text', addText);
    this.#parser.on('cdata', addText);
  }

  get isFull(): boolean {
    return this.#isFull;
  }

  write(text: string): void {
    this.#parser.write(text);
  }

  end(): void {
    this.#parser.close();
  }

  #open(name: string, attributes: Readonly<Record<string, string>>): void {
    if (this.#path.length === 0 && name !== 'testsuites' && name !== 'testsuite')
      throw new NotJUnit(
        `it begins with <${this.#cut(name, 50)}> instead of <testsuites> or <testsuite>`,
      );
    if (this.#path.length === MAX_DEPTH) throw new NotJUnit('its elements are nested too deep');
    this.#path.push(name);
    const test = this.#test;
    if (!test) {
      if (name === 'testsuite') this.#suites.push(this.#cut(attributes.name ?? '', MAX_NAME));
      if (name === 'testcase') this.#test = this.#beginTest(attributes);
      return;
    }
    const isFailure = FAILURES.includes(name);
    if (isFailure || (name === 'skipped' && test.status !== 'failed')) {
      test.status = isFailure ? 'failed' : 'skipped';
      test.message ??= attributes.message ? this.#cut(attributes.message, MAX_MESSAGE) : null;
      this.#reading = { isOutput: false, text: '' };
    } else if (name === 'system-out' || name === 'system-err')
      this.#reading = { isOutput: true, text: '' };
  }

  #beginTest({ name, classname, file, time }: Readonly<Record<string, string>>): TestCase {
    const seconds = time === undefined ? Number.NaN : Number(time.replaceAll(',', ''));
    const isTime = time?.trim() !== '' && seconds >= 0 && seconds <= MAX_SECONDS;
    return {
      status: 'passed',
      name: this.#cut(name || '(no name)', MAX_NAME),
      className: this.#cut(classname ?? '', MAX_NAME),
      suite: this.#suites.at(-1) ?? '',
      file: file ? this.#cut(file, MAX_NAME) : null,
      durationMs: isTime ? Math.round(seconds * 1_000) : null,
      message: null,
      details: null,
      output: null,
    };
  }

  #addText(text: string): void {
    const reading = this.#reading;
    if (!reading) return;
    const { isOutput } = reading;
    // The beginning of a failure says what has failed, and the end of the output what happened last.
    const max = (isOutput ? MAX_OUTPUT : MAX_DETAILS) + CUT_MARGIN;
    if (isOutput) reading.text = `${reading.text}${text}`.slice(-max);
    else if (reading.text.length < max) reading.text += text.slice(0, max - reading.text.length);
  }

  #close(name: string): void {
    this.#path.pop();
    const test = this.#test;
    if (!test && name === 'testsuite') this.#suites.pop();
    if (!test) return;
    if (name === 'testcase') {
      this.#test = undefined;
      this.#reading = undefined;
      if (test.status !== 'failed') test.output = null;
      if (!this.#isFull && !this.#onTest(test)) this.#isFull = true;
      return;
    }
    const reading = this.#reading;
    const isEnd = [...FAILURES, 'skipped', 'system-out', 'system-err'].includes(name);
    if (!reading || !isEnd) return;
    this.#reading = undefined;
    if (reading.isOutput) {
      const text = maskEnd(reading.text, MAX_OUTPUT, this.#mask).trim();
      const output = [test.output, text].filter(Boolean).join('\n');
      if (text) test.output = output.slice(-MAX_OUTPUT).toWellFormed();
    } else test.details ??= this.#cut(reading.text, MAX_DETAILS).trim() || null;
  }

  #cut(text: string, max: number): string {
    return maskBeginning(text, max, this.#mask);
  }
}
