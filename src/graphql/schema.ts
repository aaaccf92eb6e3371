/** The whole schema: each import adds its feature's types and fields to the builder. */
import { builder } from './builder.ts';
import { demandDiskSpace } from './disk-space.ts';
import '../auth/graphql/namespaces.ts';
import '../auth/graphql/accounts.ts';
import '../auth/graphql/credentials.ts';
import '../auth/graphql/audit-log.ts';
import '../repos/graphql/repositories.ts';
import '../repos/graphql/mutations.ts';
import '../repos/graphql/allowed-secrets.ts';
import '../repos/graphql/branch-rules.ts';
import '../repos/graphql/search.ts';
import '../repos/graphql/writing.ts';
import '../auth/graphql/sessions.ts';
import '../auth/graphql/ssh-keys.ts';
import '../repos/graphql/subscriptions.ts';
import '../lfs/graphql/lfs.ts';
import '../jobs/graphql/jobs.ts';
import '../jobs/graphql/kept.ts';
import '../jobs/graphql/log-view.ts';
import '../jobs/graphql/mutations.ts';
import '../jobs/graphql/subscriptions.ts';
import '../jobs/graphql/usage.ts';
import '../feed/graphql/feed.ts';
import '../webhooks/graphql/webhooks.ts';
import '../webhooks/graphql/mutations.ts';
import './diagnostics.ts';

export const schema = demandDiskSpace(builder.toSchema());
