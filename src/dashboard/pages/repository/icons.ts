import {
  BookText,
  File,
  FileArchive,
  FileCode,
  FileCog,
  FileImage,
  FileJson,
  FileSpreadsheet,
  FileText,
  type LucideIcon,
  NotebookText,
  Scale,
} from 'lucide-react';
import { languageOf } from './highlight.ts';

const BY_NAME: [RegExp, LucideIcon][] = [
  [/^readme(\.|$)/i, BookText],
  [/^(licen[cs]e|copying)(\.|$)/i, Scale],
  [/\.(png|jpe?g|gif|webp|avif|ico|svg|bmp|tiff?)$/i, FileImage],
  [/\.(zip|gz|tgz|bz2|xz|zst|tar|7z|whl|jar)$/i, FileArchive],
  [/\.(csv|tsv|parquet|xlsx?|ods)$/i, FileSpreadsheet],
  [/\.ipynb$/i, NotebookText],
  [/\.(jsonl?|jsonc)$/i, FileJson],
  [/\.(md|markdown|txt|rst|tex|pdf)$/i, FileText],
  [/(^\.[^.]+(rc|ignore|attributes|config)?$)|\.(ya?ml|toml|ini|cfg|conf|lock)$/i, FileCog],
];

/** What a file is, by its name. */
export function iconOf(name: string): LucideIcon {
  const known = BY_NAME.find(([pattern]) => pattern.test(name))?.[1];
  return known ?? (languageOf(name) ? FileCode : File);
}
