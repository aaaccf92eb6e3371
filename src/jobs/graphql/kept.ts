/** GraphQL types of kept artifacts: the list of a namespace, and their deletion. */
import { Namespace } from '../../identity/graphql/namespaces.ts';
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import * as downloads from '../artifacts/downloads.ts';
import * as kept from '../artifacts/kept.ts';
import { JobArtifacts } from './outputs.ts';

const KeptArtifacts = builder.objectRef<kept.KeptArtifacts>('KeptArtifacts').implement({
  description: 'The artifacts of a deleted job. They count as storage until they are deleted.',
  fields: (t) => ({
    jobId: t.exposeID('id', { description: 'The id of the deleted job.' }),
    jobName: t.exposeString('name', {
      description: 'The name of the deleted job; another job may use it now.',
    }),
    jobDeletedAt: t.expose('deletedAt', {
      type: 'DateTime',
      description: 'When the job was deleted.',
    }),
    artifacts: t.field({
      type: JobArtifacts,
      description: 'The files, at their unchanged URL.',
      resolve: ({ sizeBytes, files, ...row }, _args, { services }) =>
        downloads.describeArtifacts(services, {
          ...row,
          artifactBytes: sizeBytes,
          artifactFiles: files,
        }),
    }),
  }),
});

builder.prismaObjectField(Namespace, 'keptArtifacts', (t) =>
  t.field({
    type: defineConnectionType('KeptArtifacts', KeptArtifacts),
    nullable: true,
    description: 'Artifacts that were kept when their jobs were deleted, latest deletion first.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(
        await kept.listKeptArtifacts(services, viewer, { ...args, namespaceId: id }),
        args,
      ),
  }),
);

const DeleteKeptArtifactsInput = builder.inputType('DeleteKeptArtifactsInput', {
  description: 'The artifacts to delete.',
  fields: (t) => ({
    jobId: t.id({ required: true, description: 'The id of the deleted job.' }),
  }),
});

builder.mutationField('deleteKeptArtifacts', (t) =>
  t.field({
    type: deletionPayload('DeleteKeptArtifacts'),
    nullable: true,
    description: 'Permanently deletes artifacts that were kept when their job was deleted.',
    args: { input: t.arg({ type: DeleteKeptArtifactsInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await kept.deleteKeptArtifacts(services, viewer, input.jobId),
    }),
  }),
);
