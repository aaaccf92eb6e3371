import { graphql } from '../../graphql/graphql.ts';
import { startData } from '../../start.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { CursorPagination, useAfterCursor } from '../../ui/paging.tsx';
import {
  AuditEntries,
  AuditFilters,
  AuditRow,
  useAuditFilter,
} from '../namespace/audit-entries.tsx';
import { SettingsFrame } from '../settings/frame.tsx';

const AuditQuery = graphql(
  `
  query ServerAudit($after: String, $action: AuditAction, $actor: String) {
    auditLog(first: 50, after: $after, action: $action, actor: $actor) {
      pageInfo { hasNextPage endCursor }
      nodes { id ...AuditRow }
    }
  }
`,
  [AuditRow],
);

/** The audit log of the server, newest entries first. */
export default function AuditPage() {
  const after = useAfterCursor();
  const filter = useAuditFilter();
  const asked = useRetryingQuery({
    query: AuditQuery,
    variables: { after, ...filter },
    pause: !startData.viewer?.operator,
  });
  return (
    <SettingsFrame title="Audit log" operatorsOnly>
      <AuditFilters />
      <Load asked={asked} of={(data) => data.auditLog} what="list">
        {({ nodes, pageInfo }) => (
          <>
            <AuditEntries entries={nodes} />
            <CursorPagination pageInfo={pageInfo} />
          </>
        )}
      </Load>
    </SettingsFrame>
  );
}
