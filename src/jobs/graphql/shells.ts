/** GraphQL types of the open shells of jobs. */
import type { JobShell } from '../../../prisma/generated/client.ts';
import { AuditCredential, readCredential } from '../../identity/graphql/audit-log.ts';
import { Namespace } from '../../identity/graphql/namespaces.ts';
import { anyTargetIn, can } from '../../identity/permissions.ts';
import { builder, INPUT } from '../../platform/schema/builder.ts';
import { setShellAccess } from '../shells/namespace-access.ts';
import * as shells from '../shells/sessions.ts';
import { ShellAccess } from './enums.ts';
import { Job } from './jobs.ts';

const JobShellType = builder.objectRef<JobShell>('JobShell').implement({
  description: 'An open shell, or a command that a user has started, in a running job.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'The id, for `endJobShell`.' }),
    username: t.exposeString('username', { description: 'The name of the user who opened it.' }),
    credential: t.field({
      type: AuditCredential,
      nullable: true,
      description: 'The credential with which it was opened.',
      resolve: readCredential,
    }),
    address: t.exposeString('address', {
      nullable: true,
      description: 'The client address from which it was opened.',
    }),
    command: t.exposeString('command', {
      nullable: true,
      description:
        'The command, of which only the first 1000 characters are stored; null for a shell.',
    }),
    terminal: t.exposeBoolean('terminal', { description: 'Whether it has a terminal.' }),
    beganAt: t.expose('beganAt', { type: 'DateTime', description: 'When it was opened.' }),
  }),
});

builder.prismaObjectField(Job, 'shells', (t) =>
  t.field({
    type: [JobShellType],
    nullable: true,
    complexity: 5,
    description:
      'The open shells, oldest first, without connections to ports. Null for those who may not open one in the job.',
    select: { namespaceId: true, repositoryId: true, createdById: true, attemptId: true },
    resolve: (job, _args, { services, viewer }) => shells.listShells(services, viewer, job),
  }),
);

builder.prismaObjectField(Namespace, 'shellAccess', (t) =>
  t.field({
    type: ShellAccess,
    nullable: true,
    description: 'Whether shells can be opened in the jobs of the namespace. Members may see it.',
    select: { id: true, shellAccess: true },
    resolve: ({ id, shellAccess }, _args, { viewer }) =>
      can(viewer, 'job.read', anyTargetIn(viewer, id)) ? shellAccess : null,
  }),
);

const SetShellAccessInput = builder.inputType('SetShellAccessInput', {
  description: 'Whether shells can be opened in the jobs of a namespace.',
  fields: (t) => ({
    namespace: t.string({ required: true, description: 'The name of the namespace.' }),
    access: t.field({
      type: ShellAccess,
      required: true,
      description: '`ALLOWED` is the default of a namespace.',
    }),
  }),
});

const SetShellAccessPayload = builder
  .objectRef<{ namespaceId: string }>('SetShellAccessPayload')
  .implement({
    description: 'The namespace that was changed.',
    fields: (t) => ({
      namespace: t.prismaField({
        type: Namespace,
        description: 'The namespace.',
        resolve: (query, { namespaceId }, _args, { services }) =>
          services.db.namespace.findUniqueOrThrow({ ...query, where: { id: namespaceId } }),
      }),
    }),
  });

builder.mutationField('setShellAccess', (t) =>
  t.field({
    type: SetShellAccessPayload,
    nullable: true,
    description:
      'Switches shells in all jobs of a namespace off or on. Only for admins, with a credential of full rights. Open shells end within six seconds.',
    args: { input: t.arg({ type: SetShellAccessInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      namespaceId: await setShellAccess(services, viewer, input),
    }),
  }),
);

const EndJobShellInput = builder.inputType('EndJobShellInput', {
  description: 'The shell to end.',
  fields: (t) => ({
    id: t.id({ required: true, description: 'The id of the shell.' }),
  }),
});

const EndJobShellPayload = builder.objectRef<{ id: string }>('EndJobShellPayload').implement({
  description: 'The shell that ends.',
  fields: (t) => ({ id: t.exposeID('id', { description: 'The id of the shell.' }) }),
});

builder.mutationField('endJobShell', (t) =>
  t.field({
    type: EndJobShellPayload,
    nullable: true,
    description:
      'Ends an open shell in a job within six seconds. Its client is told by whom. For those who may open one in the job.',
    args: { input: t.arg({ type: EndJobShellInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await shells.endShell(services, viewer, input.id),
    }),
  }),
);
