/** GraphQL: mutations that create and delete branches and tags, and create commits. */
import { builder, INPUT } from '../../platform/schema/builder.ts';
import * as history from '../browsing/history.ts';
import * as writing from '../writing.ts';
import { Commit } from './contents.ts';
import { definePayload, REPOSITORY_ID, REPOSITORY_NAMESPACE, readPayload } from './mutations.ts';
import { REF_DESCRIPTION } from './repositories.ts';

const KINDS = { Branch: 'branch', Tag: 'tag' } as const;

for (const [Kind, kind] of Object.entries(KINDS)) {
  const article = `a ${kind}`;
  const CreateInput = builder.inputType(`Create${Kind}Input`, {
    description: `The ${kind} to create.`,
    fields: (t) => ({
      id: t.id(REPOSITORY_ID),
      namespace: t.string(REPOSITORY_NAMESPACE),
      name: t.string({ required: true, description: `The name of the ${kind}.` }),
      from: t.string({ description: `The start point. ${REF_DESCRIPTION}` }),
      ...(kind === 'tag' && {
        message: t.string({
          description:
            'The message of an annotated tag, which names the viewer as tagger. Default: a lightweight tag.',
        }),
      }),
    }),
  });
  const DeleteInput = builder.inputType(`Delete${Kind}Input`, {
    description: `The ${kind} to delete.`,
    fields: (t) => ({
      id: t.id(REPOSITORY_ID),
      namespace: t.string(REPOSITORY_NAMESPACE),
      name: t.string({ required: true, description: `The name of the ${kind}.` }),
    }),
  });
  builder.mutationField(`create${Kind}`, (t) =>
    t.field({
      type: definePayload(`Create${Kind}`),
      nullable: true,
      description: `Creates ${article}. The rules for pushes apply.`,
      args: { input: t.arg({ type: CreateInput, ...INPUT }) },
      resolve: (_root, { input }, context, info) =>
        readPayload(context, info, (select) =>
          writing.createRef(context.services, context, { kind, ...input }, select),
        ),
    }),
  );
  builder.mutationField(`delete${Kind}`, (t) =>
    t.field({
      type: definePayload(`Delete${Kind}`),
      nullable: true,
      description: `Deletes ${article}. The rules for pushes apply.`,
      args: { input: t.arg({ type: DeleteInput, ...INPUT }) },
      resolve: (_root, { input }, context, info) =>
        readPayload(context, info, (select) =>
          writing.deleteRef(context.services, context, { kind, ...input }, select),
        ),
    }),
  );
}

const FileEncodingInput = builder.enumType('ContentEncoding', {
  description: 'The encoding of file contents.',
  values: {
    UTF_8: { value: 'utf-8', description: 'Text.' },
    BASE64: { value: 'base64', description: 'Base64, for binary contents.' },
  } as const,
});

const FileChangeInput = builder.inputType('FileChangeInput', {
  description: 'The change of one file.',
  fields: (t) => ({
    path: t.string({
      required: true,
      description: 'The path from the root, without a leading `/`.',
    }),
    content: t.string({
      description: 'The complete new contents. If omitted or null, the file is deleted.',
    }),
    encoding: t.field({
      type: FileEncodingInput,
      required: true,
      defaultValue: 'utf-8',
      description: 'The encoding of `content`.',
    }),
  }),
});

const CreateCommitInput = builder.inputType('CreateCommitInput', {
  description: 'The commit to create.',
  fields: (t) => ({
    id: t.id(REPOSITORY_ID),
    namespace: t.string(REPOSITORY_NAMESPACE),
    branch: t.string({
      required: true,
      description: 'The branch to add the commit to. It is created if it does not exist.',
    }),
    message: t.string({ required: true, description: 'The commit message.' }),
    changes: t.field({
      type: [FileChangeInput],
      required: true,
      description: 'The changed files, 1 to 100. Existing files keep their modes.',
    }),
    expectedHead: t.string({
      description: 'The id of the commit that the branch must point to. Default: no check.',
    }),
    from: t.string({ description: `The start point of a new branch. ${REF_DESCRIPTION}` }),
  }),
});

const CreateCommitPayload = builder
  .objectRef<writing.CreatedCommit>('CreateCommitPayload')
  .implement({
    description: 'The new commit.',
    fields: (t) => ({
      commit: t.field({
        type: Commit,
        description: 'The commit.',
        resolve: ({ repository, sha }, _args, { services, viewer, allowance }, info) =>
          history.readCommit(services, viewer, repository, sha, allowance(info)),
      }),
    }),
  });

builder.mutationField('createCommit', (t) =>
  t.field({
    type: CreateCommitPayload,
    nullable: true,
    description:
      'Adds a commit by the caller to a branch. The rules for pushes apply, including secret scanning.',
    args: { input: t.arg({ type: CreateCommitInput, ...INPUT }) },
    resolve: (_root, { input }, context, { path }) => {
      const { services, viewer, requestId, idempotency } = context;
      const effect = idempotency && { ...idempotency, field: `${path.key}` };
      return writing.createCommit(services, { viewer, requestId, effect }, input);
    },
  }),
);
