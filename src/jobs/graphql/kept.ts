/** Artifacts of jobs that were deleted without them, in GraphQL: the list of a namespace, and removing them. */
import { Namespace } from '../../identity/graphql/namespaces.ts';
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import { connectionType, pageCost, sliceArgs, toConnection } from '../../platform/schema/paging.ts';
import * as downloads from '../artifacts/downloads.ts';
import * as kept from '../artifacts/kept.ts';
import { JobArtifacts } from './outputs.ts';

const KeptArtifacts = builder.objectRef<kept.KeptArtifacts>('KeptArtifacts').implement({
  description:
    'The artifacts of a job whose record was deleted. They count as storage until they are deleted.',
  fields: (t) => ({
    jobId: t.exposeID('id', { description: 'The id that the job had.' }),
    jobName: t.exposeString('name', {
      description: 'The name that the job had; another may have it by now.',
    }),
    jobDeletedAt: t.expose('deletedAt', {
      type: 'DateTime',
      description: 'When the record of the job was deleted.',
    }),
    artifacts: t.field({
      type: JobArtifacts,
      description: 'The files, at the address that they had.',
      resolve: ({ sizeBytes, files, ...row }, _args, { services }) =>
        downloads.describeArtifacts(services, { ...row, artifactBytes: sizeBytes, artifactFiles: files }),
    }),
  }),
});

builder.prismaObjectField(Namespace, 'keptArtifacts', (t) =>
  t.field({
    type: connectionType('KeptArtifacts', KeptArtifacts),
    nullable: true,
    description: 'Artifacts of jobs that were deleted without them, the last deleted first.',
    complexity: pageCost(),
    args: sliceArgs,
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await kept.sliceKept(services, viewer, { ...args, namespaceId: id }), args),
  }),
);

const DeleteKeptArtifactsInput = builder.inputType('DeleteKeptArtifactsInput', {
  description: 'The artifacts to delete.',
  fields: (t) => ({
    jobId: t.id({ required: true, description: 'The id of the job that left them.' }),
  }),
});

builder.mutationField('deleteKeptArtifacts', (t) =>
  t.field({
    type: deletionPayload('DeleteKeptArtifacts'),
    nullable: true,
    description: 'Removes artifacts whose job was deleted without them, for good.',
    args: { input: t.arg({ type: DeleteKeptArtifactsInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await kept.deleteKeptArtifacts(services, viewer, input.jobId),
    }),
  }),
);
