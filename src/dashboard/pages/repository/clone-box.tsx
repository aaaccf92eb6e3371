import { useState } from 'react';
import { Lines } from '../../ui/copy.tsx';
import type { RepositoryData } from './frame.tsx';

/** How to get it onto one's own machine. */
export function CloneBox({ repository }: { repository: RepositoryData }) {
  const [kind, setKind] = useState<'HTTP' | 'SSH'>('HTTP');
  const url = kind === 'HTTP' ? repository.cloneUrl : repository.sshUrl;
  return (
    <section aria-labelledby="clone">
      <div className="mb-2 flex items-baseline gap-3">
        <h2 id="clone" className="text-base">
          Clone
        </h2>
        {(['HTTP', 'SSH'] as const).map((each) => (
          <button
            key={each}
            type="button"
            aria-pressed={kind === each}
            onClick={() => setKind(each)}
            className="min-h-6 min-w-6 text-sm text-dim aria-pressed:font-medium aria-pressed:text-ink aria-pressed:underline"
          >
            {each}
          </button>
        ))}
      </div>
      <Lines text={`git clone ${url}`} label="The line that clones it" />
      <p className="mt-2 text-sm text-dim">
        {kind === 'HTTP'
          ? 'Use a token as the password, with any user name.'
          : 'With an SSH key from your settings.'}
      </p>
    </section>
  );
}

/** What is shown of a repository without a commit: how to push the first one. */
export function pushLines({ cloneUrl, defaultBranch }: RepositoryData): string {
  return `git init -b ${defaultBranch}
git remote add origin ${cloneUrl}
echo "# Hello" > README.md
git add README.md && git commit -m "First commit"
git push -u origin ${defaultBranch}`;
}
