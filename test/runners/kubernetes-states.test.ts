/** The states of attempts, from the statuses of pods that Kubernetes 1.20 has written. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, onTestFinished, test, vi } from 'vitest';
import { Attempts } from '../../src/runners/kubernetes/attempts.ts';
import {
  isBeingCreated,
  isUnsupervised,
  type PodView,
  translateSchedulerMessage,
} from '../../src/runners/kubernetes/pod-state.ts';

const PODS: Record<string, PodView> = JSON.parse(
  readFileSync(join(import.meta.dirname, 'kubernetes-pods.json'), 'utf8'),
);

function pod(name: string): PodView {
  const found = PODS[name];
  if (!found) throw new Error(`no pod ${name} was recorded`);
  return structuredClone(found);
}

/** The states of an attempt whose pod has these statuses one after the other. */
function follow(...pods: PodView[]) {
  const attempts = new Attempts();
  onTestFinished(() => attempts[Symbol.dispose]());
  for (const one of pods) attempts.update('att', one, false);
  return attempts;
}
const stateOf = (...names: string[]) => follow(...names.map(pod)).state('att');

afterEach(() => void vi.useRealTimers());

test('a pod without a node says what it waits for', () => {
  expect(stateOf('gpu')).toEqual({ kind: 'waiting', reason: 'no node has 4 free nvidia.com/gpu' });
  expect(stateOf('cpu')).toEqual({
    kind: 'waiting',
    reason: 'no node has 8 free vCPUs and 1024 GB of free memory',
  });
  expect(stateOf('label')).toEqual({
    kind: 'waiting',
    reason: 'no node fits; 2 nodes without the labels that the job needs',
  });
  expect(stateOf('creating')).toMatchObject({
    kind: 'waiting',
    reason: expect.stringMatching(/^node-\d is pulling/),
  });
  expect(isBeingCreated(pod('creating'))).toBe(true);
  const attempts = follow(pod('creating'));
  attempts.explain('att', { event: 'FailedMount: secret "x" not found' });
  expect(attempts.state('att')).toMatchObject({ reason: 'FailedMount: secret "x" not found' });
  // Until the next status, which only a node that answers can send.
  attempts.explain('att', { isNodeSilent: true });
  expect(attempts.state('att')).toEqual({ kind: 'unknown' });
  attempts.update('att', pod('running'), false);
  expect(attempts.state('att')).toEqual({ kind: 'running' });
});

test.each([
  ['0/2 nodes are available: 2 Insufficient cpu.', 'no node has 0.5 free vCPUs'],
  [
    "0/3 nodes are available: 1 Insufficient memory, 2 node(s) had taint {a: b}, that the pod didn't tolerate.",
    'no node has 2 GB of free memory; 2 nodes reserved by taints that the job does not tolerate',
  ],
  [
    "0/2 nodes are available: 1 node(s) had taint {node.kubernetes.io/unreachable: }, that the pod didn't tolerate, 1 node(s) were unschedulable.",
    'no node fits; 1 node not answering; 1 node closed for new jobs',
  ],
  [
    "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
    'no node fits; 3 nodes without the labels that the job needs',
  ],
  [
    '0/2 nodes are available: 2 node(s) had volume node affinity conflict.',
    '0/2 nodes are available: 2 node(s) had volume node affinity conflict.',
  ],
  ['no nodes available to schedule pods', 'no nodes available to schedule pods'],
])('the scheduler says: %s', (message, translation) => {
  const requests = { cpu: '500m', memory: String(2 * 2 ** 30) };
  expect(translateSchedulerMessage(message, requests)).toBe(translation);
});

test('an image that cannot be used is refused at once, one that cannot be pulled after two minutes', () => {
  expect(stateOf('imageName')).toMatchObject({
    kind: 'refused',
    reason: expect.stringMatching(/UPPER\/case:1/),
  });
  expect(stateOf('noShell')).toMatchObject({
    kind: 'refused',
    reason: expect.stringMatching(/\/bin\/sh/),
  });
  vi.useFakeTimers();
  const attempts = follow(pod('pullError'), pod('pull'));
  // The message of the back-off does not say why.
  const reason = expect.stringMatching(/registry\.invalid.* cannot be pulled: .*(lookup|resolve)/s);
  expect(attempts.state('att')).toEqual({ kind: 'waiting', reason });
  let hasChanged = false;
  void attempts.nextChange('att', new AbortController().signal).then(() => {
    hasChanged = true;
  });
  vi.advanceTimersByTime(119_000);
  attempts.update('att', pod('pull'), false);
  expect(attempts.state('att').kind).toBe('waiting');
  vi.advanceTimersByTime(2_000);
  expect(attempts.state('att')).toEqual({ kind: 'refused', reason });
  attempts.update('att', pod('running'), false);
  expect(attempts.state('att').kind).toBe('refused');
  vi.useRealTimers();
  return expect.poll(() => hasChanged).toBe(true);
});

test('a container that its runtime could not start is lost, because the image is not the cause', () => {
  const failed = pod('noShell');
  const { state } = failed.status?.containerStatuses?.[1] ?? {};
  // As containerd says when it ends while it starts a container.
  if (state?.terminated)
    state.terminated.message = 'failed to start containerd task "2aa5": context canceled: unknown';
  expect(follow(failed).state('att')).toMatchObject({
    kind: 'running',
    commandEnd: { exitCode: null, isLoss: true, reason: expect.stringMatching('context canceled') },
  });
});

test.each([
  'failed to resolve reference "docker.io/library/nothing:1": docker.io/library/nothing:1: not found',
  'pull access denied, repository does not exist or may require authorization',
  'dial tcp: lookup registry.invalid: no such host',
])('an image is refused at once when the registry says: %s', (message) => {
  const refused = pod('pullError');
  const waiting = refused.status?.containerStatuses?.[1]?.state?.waiting;
  if (waiting) waiting.message = message;
  expect(follow(refused).state('att').kind).toBe('refused');
});

test('a command that has ended while its agent runs is no end of the attempt', () => {
  expect(stateOf('running')).toEqual({ kind: 'running' });
  expect(stateOf('running', 'commandOver')).toMatchObject({
    kind: 'running',
    commandEnd: { exitCode: 4, outOfMemory: false, isLoss: false },
  });
  expect(stateOf('exit3')).toMatchObject({ kind: 'ended', end: { exitCode: 3, isLoss: false } });
  expect(isUnsupervised(pod('commandOver'))).toBe(false);
  expect(isUnsupervised(pod('running'))).toBe(false);
  expect(isUnsupervised(pod('agentGone'))).toBe(true);
});

test('an agent that ends before its job leaves its last output in the reason', () => {
  const message = 'Loam needs Node.js 22 or later, and this is v18.20.4\n';
  for (const name of ['agentGone', 'deleted']) {
    const gone = pod(name);
    const agent = gone.status?.containerStatuses?.find((one) => one.name === 'agent');
    if (!agent?.state) throw new Error('no agent');
    agent.state = { terminated: { exitCode: 69, reason: 'Error', message } };
    const state = follow(gone).state('att');
    const end = state.kind === 'running' ? state.commandEnd : state.kind === 'ended' && state.end;
    expect(end, name).toMatchObject({
      isLoss: true,
      reason: `the agent ended with exit code 69 on ${gone.spec?.nodeName}: ${message.trim()}`,
    });
  }
});

test('lack of memory is no loss', () => {
  expect(stateOf('outOfMemory')).toMatchObject({
    kind: 'ended',
    end: { exitCode: 137, outOfMemory: true, isLoss: false },
  });
  expect(stateOf('childOutOfMemory')).toMatchObject({
    kind: 'ended',
    end: { exitCode: 0, outOfMemory: true, isLoss: false },
  });
});

test('a pod whose node is silent is unknown, and goes on when the node returns', () => {
  expect(stateOf('running', 'silentNode')).toEqual({ kind: 'unknown' });
  expect(stateOf('running', 'silentNode', 'running')).toEqual({ kind: 'running' });
});

test('a restarted node has lost its pods', () => {
  expect(stateOf('running', 'restartedNode')).toMatchObject({
    kind: 'ended',
    end: { exitCode: null, isLoss: true },
  });
});

test('an end without a reason is made up by the kubelet of a deleted pod, so the attempt is lost', () => {
  const madeUp = pod('deleting');
  for (const status of madeUp.status?.containerStatuses ?? []) {
    // As it is in JSON.
    const terminated = { exitCode: 0, startedAt: null, finishedAt: null } as never;
    status.state = { terminated };
  }
  expect(follow(pod('creating'), madeUp).state('att')).toMatchObject({
    kind: 'ended',
    end: { exitCode: null, isLoss: true, reason: 'The pod was deleted.' },
  });
});

test('a pod that someone deletes is lost when its containers have ended', () => {
  expect(stateOf('running', 'deleting')).toEqual({ kind: 'running' });
  const attempts = follow(pod('running'), pod('deleting'));
  attempts.update('att', pod('deleted'), true);
  expect(attempts.state('att')).toMatchObject({
    kind: 'ended',
    end: { exitCode: 143, isLoss: true, reason: 'The pod was deleted.' },
  });
  // A job that had ended by itself before that.
  const before = pod('deleted');
  for (const { state } of before.status?.containerStatuses ?? [])
    if (state?.terminated) state.terminated.finishedAt = new Date('2026-01-01');
  const ended = follow(before);
  expect(ended.state('att')).toMatchObject({ kind: 'ended', end: { isLoss: false } });
});

test('a pod that vanished without an end is unknown, unless it had no node', () => {
  for (const [name, state] of [
    ['running', { kind: 'unknown' }],
    ['gpu', { kind: 'ended', end: { isLoss: true } }],
  ] as const) {
    const attempts = follow(pod(name));
    attempts.update('att', pod(name), true);
    expect(attempts.state('att')).toMatchObject(state);
  }
});

test('an evicted pod has ended when the kubelet has had time to kill its containers', () => {
  vi.useFakeTimers();
  const evicted = pod('ownDiskUse');
  if (evicted.status) evicted.status.message = 'The node was low on resource: ephemeral-storage.';
  const attempts = follow(pod('running'), evicted);
  expect(attempts.state('att')).toEqual({ kind: 'running' });
  vi.advanceTimersByTime(60_000);
  expect(attempts.state('att')).toMatchObject({ kind: 'ended', end: { isLoss: true } });
  // Not a loss, because the job caused it.
  const full = follow(pod('ownDiskUse'));
  const late = follow(pod('deadline'));
  expect([full.state('att').kind, late.state('att').kind]).toEqual(['running', 'running']);
  vi.advanceTimersByTime(60_000);
  for (const attempt of [full, late])
    expect(attempt.state('att')).toMatchObject({
      kind: 'ended',
      end: { exitCode: 137, isLoss: false },
    });
});

test('newer servers mark disrupted pods', () => {
  const preempted = pod('exit3');
  preempted.status?.conditions?.push({
    type: 'DisruptionTarget',
    status: 'True',
    reason: 'PreemptionByScheduler',
  });
  expect(follow(preempted).state('att')).toMatchObject({ kind: 'ended', end: { isLoss: true } });
});
