/** Draws the badge of a branch: a small SVG with the name of a check and its state, for READMEs and other pages. */
import type { CommitState } from '../../prisma/generated/enums.ts';

const LOOKS: Record<CommitState | 'unknown', { word: string; color: string }> = {
  success: { word: 'passing', color: '#2f6b2b' },
  failure: { word: 'failing', color: '#a3281c' },
  error: { word: 'error', color: '#a3281c' },
  pending: { word: 'pending', color: '#7a5c00' },
  unknown: { word: 'unknown', color: '#5c5c5c' },
};
const MAX_LABEL = 40;
const PADDING = 6;

/** @param state null if the commit has no status */
export function drawBadge(label: string, state: CommitState | null): string {
  const { word, color } = LOOKS[state ?? 'unknown'];
  const characters = [...label];
  const shown =
    characters.length > MAX_LABEL ? `${characters.slice(0, MAX_LABEL - 1).join('')}…` : label;
  const labelWidth = estimateWidth(shown);
  const wordWidth = estimateWidth(word);
  const split = labelWidth + 2 * PADDING;
  const width = split + wordWidth + 2 * PADDING;
  const title = escapeXml(`${label}: ${word}`);
  const text = (x: number, length: number, content: string) =>
    `<text x="${x}" y="14" textLength="${length}">${escapeXml(content)}</text>`;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="20" role="img" aria-label="${title}">
<title>${title}</title>
<rect width="${width}" height="20" rx="3" fill="${color}"/>
<path d="M3 0h${split - 3}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#444"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
${text(PADDING, labelWidth, shown)}
${text(split + PADDING, wordWidth, word)}
</g>
</svg>
`;
}

/** Width in pixels. `textLength` makes browsers fit the text to it, because the font and its widths are not known. */
function estimateWidth(text: string): number {
  const widths = [...text].map((character) => {
    if (/[ !'(),./:;I[\]fijlrt|-]/.test(character)) return 4.4;
    if (/[MWmw\u{1100}-\u{10ffff}]/u.test(character)) return 11;
    return /[A-Z]/.test(character) ? 8 : 7;
  });
  return Math.ceil(widths.reduce((sum, width) => sum + width, 0));
}

const ENTITIES: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' };

/** Also removes characters that XML does not allow, which make browsers refuse the whole picture. */
function escapeXml(text: string): string {
  return text
    .replace(/[^\t\n\r\u{20}-\u{d7ff}\u{e000}-\u{fffd}\u{10000}-\u{10ffff}]/gu, '')
    .replace(/[&<>"]/g, (character) => ENTITIES[character] ?? '');
}
