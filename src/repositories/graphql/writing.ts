import { builder, INPUT } from '../../platform/schema/builder.ts';
import * as history from '../browsing/history.ts';
import * as writing from '../writing.ts';
import { Commit } from './contents.ts';
import { changed, changedPayload, ID, NAMESPACE } from './mutations.ts';
import { REF } from './repositories.ts';

const KINDS = { Branch: 'branch', Tag: 'tag' } as const;

for (const [Kind, kind] of Object.entries(KINDS)) {
  const article = `a ${kind}`;
  const CreateInput = builder.inputType(`Create${Kind}Input`, {
    description: `The ${kind} to make.`,
    fields: (t) => ({
      id: t.id(ID),
      namespace: t.string(NAMESPACE),
      name: t.string({ required: true, description: `The name of the ${kind}.` }),
      from: t.string({ description: `What it is to point to. ${REF}` }),
      ...(kind === 'tag' && {
        message: t.string({
          description: 'Of an annotated tag, which names the viewer; left out: a lightweight one.',
        }),
      }),
    }),
  });
  const DeleteInput = builder.inputType(`Delete${Kind}Input`, {
    description: `The ${kind} to delete.`,
    fields: (t) => ({
      id: t.id(ID),
      namespace: t.string(NAMESPACE),
      name: t.string({ required: true, description: `The name of the ${kind}.` }),
    }),
  });
  builder.mutationField(`create${Kind}`, (t) =>
    t.field({
      type: changedPayload(`Create${Kind}`),
      nullable: true,
      description: `Makes ${article}, as a push does: the same rules hold.`,
      args: { input: t.arg({ type: CreateInput, ...INPUT }) },
      resolve: (_root, { input }, context, info) =>
        changed(context, info, (select) =>
          writing.createRef(context.services, context, { kind, ...input }, select),
        ),
    }),
  );
  builder.mutationField(`delete${Kind}`, (t) =>
    t.field({
      type: changedPayload(`Delete${Kind}`),
      nullable: true,
      description: `Deletes ${article}, as a push does: the same rules hold.`,
      args: { input: t.arg({ type: DeleteInput, ...INPUT }) },
      resolve: (_root, { input }, context, info) =>
        changed(context, info, (select) =>
          writing.deleteRef(context.services, context, { kind, ...input }, select),
        ),
    }),
  );
}

const FileEncodingInput = builder.enumType('ContentEncoding', {
  description: 'How contents are written.',
  values: {
    UTF_8: { value: 'utf-8', description: 'As text.' },
    BASE64: { value: 'base64', description: 'As base64, for what is no text.' },
  } as const,
});

const FileChangeInput = builder.inputType('FileChangeInput', {
  description: 'What becomes of one file.',
  fields: (t) => ({
    path: t.string({
      required: true,
      description: 'Its path from the root, without a leading `/`.',
    }),
    content: t.string({
      description: 'Its whole contents from now on; left out or null: the file is deleted.',
    }),
    encoding: t.field({
      type: FileEncodingInput,
      required: true,
      defaultValue: 'utf-8',
      description: 'How the contents are written.',
    }),
  }),
});

const CreateCommitInput = builder.inputType('CreateCommitInput', {
  description: 'The commit to make.',
  fields: (t) => ({
    id: t.id(ID),
    namespace: t.string(NAMESPACE),
    branch: t.string({
      required: true,
      description: 'The branch it is added to, which is made if it is not there.',
    }),
    message: t.string({ required: true, description: 'Its message.' }),
    changes: t.field({
      type: [FileChangeInput],
      required: true,
      description: 'The files that change, 1 to 100. They keep their modes.',
    }),
    expectedHead: t.string({
      description:
        'The id of the commit that the branch must stand at; left out: wherever it stands.',
    }),
    from: t.string({ description: `Where a branch that is not there begins. ${REF}` }),
  }),
});

const CreateCommitPayload = builder.objectRef<writing.MadeHere>('CreateCommitPayload').implement({
  description: 'The commit that was made.',
  fields: (t) => ({
    commit: t.field({
      type: Commit,
      description: 'The commit.',
      resolve: ({ repository, sha }, _args, { services, viewer, allowance }, info) =>
        history.commit(services, viewer, repository, sha, allowance(info)),
    }),
  }),
});

builder.mutationField('createCommit', (t) =>
  t.field({
    type: CreateCommitPayload,
    nullable: true,
    description:
      'Adds a commit by the caller to a branch, as a push does: the same rules hold, and secret scanning.',
    args: { input: t.arg({ type: CreateCommitInput, ...INPUT }) },
    resolve: (_root, { input }, context) => writing.createCommit(context.services, context, input),
  }),
);
