import { Check, Copy } from 'lucide-react';
import { useEffect, useState } from 'react';
import { Button } from './button.tsx';

/** Over plain HTTP pages have no Clipboard API; there the deprecated copy command is used. */
async function copy(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement('textarea');
  area.value = text;
  (document.querySelector('dialog[open]') ?? document.body).append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}

export function CopyButton({ text, label = 'Copy' }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(false), 2_000);
    return () => clearTimeout(timer);
  }, [done]);
  const Icon = done ? Check : Copy;
  return (
    <Button
      look="quiet"
      className="px-1.5"
      title={done ? 'Copied' : label}
      onClick={() => copy(text).then(() => setDone(true))}
    >
      <Icon size={16} aria-hidden />
    </Button>
  );
}

/** Text to paste into a terminal, with a copy button. */
export function CopyableText({ text, label = 'Text to copy' }: { text: string; label?: string }) {
  return (
    <div className="flex items-start gap-1 rounded-md border border-line bg-sunken">
      <CommandText text={text} label={label} />
      <div className="p-1">
        <CopyButton text={text} label="Copy" />
      </div>
    </div>
  );
}

/** Lines of text. Long lines wrap, so that nothing is cut off; the copy button copies them as they are. */
export function CommandText({ text, label }: { text: string; label: string }) {
  return (
    <section aria-label={label} className="min-w-0 flex-1">
      <pre className="px-3 py-2 text-[13px] leading-relaxed wrap-anywhere whitespace-pre-wrap">
        {text}
      </pre>
    </section>
  );
}

/** A secret that is shown only once. */
export function OneTimeSecret({ label, value }: { label: string; value: string }) {
  return (
    <div className="space-y-2 rounded-md border border-good bg-good-soft p-3">
      <p className="text-sm font-medium">{label} Copy it now: it is not shown again.</p>
      <div className="flex items-center gap-1">
        <code
          data-secret
          className="min-w-0 flex-1 rounded bg-card px-2 py-1 break-all text-[13px]"
        >
          {value}
        </code>
        <CopyButton text={value} label="Copy the secret" />
      </div>
    </div>
  );
}
