/**
 * Prisma keeps its query compiler, which is WebAssembly, as text in Base64 in a module. A server that had read it from
 * there kept the text three times, as source, as string and as compiled code, 9 of 179 MB at idle. Here what
 * `prisma generate` has written is changed to read the compiler from a file, and the file is written.
 *
 * Run by `npm run generate`. Without it all works as well; where another version of Prisma writes something else, this fails.
 */
import { readFile, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';

const CLIENT = new URL('generated/internal/class.ts', import.meta.url);
const COMPILER = 'query_compiler.wasm';
/** The statements that import the text and decode it. */
const FROM_TEXT =
  /const \{ wasm \} = await import\("([^"]+)"\)\s+return await decodeBase64AsWasm\(wasm\)/;

const client = await readFile(CLIENT, 'utf8');
const [statements, module] = FROM_TEXT.exec(client) ?? [];
if (!statements || !module)
  throw new Error(`${fileURLToPath(CLIENT)} does not read its compiler as expected`);
const { wasm } = await import(module);
await writeFile(new URL(COMPILER, CLIENT), Buffer.from(wasm, 'base64'));
const fromFile = `const { readFileSync } = await import('node:fs')
    return new WebAssembly.Module(readFileSync(new URL('./${COMPILER}', import.meta.url)))`;
await writeFile(CLIENT, client.replace(statements, fromFile));
