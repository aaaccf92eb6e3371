import { formatMoney } from '../../../ui/format.ts';
import { InstallHint, TerminalBox, TokenHint } from '../../../ui/terminal-box.tsx';
import { type Draft, pricePerHour, toCreateInput } from './draft.ts';
import type { JobOptions } from './queries.ts';
import { formatJobCurl, formatJobGraphql, formatLoamRun, isRestEnough } from './request.ts';

/** The price of the job, and the form as a command or a request. */
export function RequestPreview({ draft, options }: { draft: Draft; options: JobOptions }) {
  const price = pricePerHour(draft, options);
  const input = toCreateInput(draft);
  return (
    <aside className="min-w-0 space-y-6" aria-label="Price and request">
      <div className="card p-4">
        <p className="text-sm text-dim">Cost while running</p>
        <p className="text-2xl font-semibold tabular-nums" data-price>
          {formatMoney(price)} <span className="text-base font-normal text-dim">an hour</span>
        </p>
        <p className="mt-1 text-sm text-dim">
          At most {formatMoney((price * Number(draft.timeoutMinutes || 0)) / 60)} per attempt,
          reached at the timeout.
        </p>
      </div>
      <section aria-labelledby="request">
        <h2 id="request" className="mb-2 text-base">
          From a terminal
        </h2>
        <TerminalBox
          label="The request"
          texts={[
            {
              client: 'loam',
              text: formatLoamRun(input, options),
              hint: (
                <>
                  {input.secrets && (
                    <p>
                      Export {input.secrets.map(({ name }) => name).join(', ')} in your shell first.
                      Values of secrets are not shown here.
                    </p>
                  )}
                  {(!input.repo || input.snapshot) && (
                    <p>In a clone of a repository, the job also gets your working directory.</p>
                  )}
                  <InstallHint />
                </>
              ),
            },
            {
              client: 'curl',
              text: formatJobCurl(input, location.origin),
              hint: (
                <>
                  {!isRestEnough(input) && (
                    <p>
                      The request leaves out settings that can only be set with loam or GraphQL.
                    </p>
                  )}
                  <TokenHint />
                </>
              ),
            },
            { client: 'GraphQL', text: formatJobGraphql(input) },
          ]}
        />
      </section>
    </aside>
  );
}
