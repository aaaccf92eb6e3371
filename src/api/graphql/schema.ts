/** The whole schema. Each import adds the types and fields of its feature to the builder. */
import type { GraphQLSchema } from 'graphql';
import { builder } from '../../platform/schema/builder.ts';
import type { Context } from '../../platform/schema/context.ts';

import '../../identity/graphql/namespaces.ts';
import '../../identity/graphql/accounts.ts';
import '../../identity/graphql/credentials.ts';
import '../../identity/graphql/directory.ts';
import '../../identity/graphql/audit-log.ts';
import '../../repositories/graphql/repositories.ts';
import '../../repositories/graphql/mutations.ts';
import '../../repositories/graphql/allowed-secrets.ts';
import '../../repositories/graphql/branch-rules.ts';
import '../../repositories/graphql/search.ts';
import '../../repositories/graphql/statuses.ts';
import '../../repositories/graphql/writing.ts';
import '../../identity/graphql/identities.ts';
import '../../identity/graphql/sessions.ts';
import '../../identity/graphql/ssh-keys.ts';
import '../../repositories/graphql/subscriptions.ts';
import '../../repositories/lfs/graphql/lfs.ts';
import '../../repositories/secrets/graphql/secrets.ts';
import '../../jobs/graphql/jobs.ts';
import '../../jobs/graphql/kept.ts';
import '../../jobs/graphql/shells.ts';
import '../../jobs/graphql/log-view.ts';
import '../../jobs/graphql/compare.ts';
import '../../jobs/graphql/metrics.ts';
import '../../jobs/graphql/reports.ts';
import '../../jobs/graphql/machines.ts';
import '../../jobs/graphql/bulk.ts';
import '../../jobs/graphql/mutations.ts';
import '../../jobs/graphql/options.ts';
import '../../jobs/graphql/overview.ts';
import '../../jobs/graphql/retention.ts';
import '../../jobs/graphql/subscriptions.ts';
import '../../jobs/graphql/budgets.ts';
import '../../jobs/graphql/usage.ts';
import '../../automation/graphql/file.ts';
import '../../automation/graphql/runs.ts';
import '../../automation/graphql/schedules.ts';
import '../../feed/graphql/feed.ts';
import '../../feed/graphql/search.ts';
import '../../webhooks/graphql/webhooks.ts';
import '../../webhooks/graphql/mutations.ts';
import './diagnostics.ts';

/** These mutations free space, and may be how the operator solves the problem. */
const FREES_SPACE = /^(cancel|delete|remove|revoke)[A-Z]/;

/** Makes all other mutations, and so all other writes of REST, fail while the disk is nearly full. Changes `schema`. */
function requireDiskSpace(schema: GraphQLSchema): GraphQLSchema {
  for (const field of Object.values(schema.getMutationType()?.getFields() ?? {})) {
    const { name, resolve } = field;
    if (FREES_SPACE.test(name) || !resolve) continue;
    field.resolve = (source, args, context: Context, info) => {
      context.services.space.demand();
      return resolve(source, args, context, info);
    };
  }
  return schema;
}

export const schema = requireDiskSpace(builder.toSchema());
