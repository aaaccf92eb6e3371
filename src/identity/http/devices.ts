/**
 * HTTP of the device authorization grant (RFC 8628): the endpoints of the program, and the page where its user answers.
 */

import express, { type Request, type Response, type Router } from 'express';
import type { Urls } from '../../base/urls.ts';
import type { Db } from '../../platform/database/client.ts';
import { shouldLog, toClientError } from '../../platform/web/error-response.ts';
import { refuseOtherMethods } from '../../platform/web/methods.ts';
import { escapeHtml, sendPage } from '../../platform/web/page.ts';
import {
  answerDeviceRequest,
  createDeviceRequest,
  DEVICE_CODE_SECONDS,
  DeviceError,
  type DeviceRequest,
  findDeviceRequest,
  redeemDeviceCode,
  requesterName,
} from '../devices.ts';
import { demandSameOrigin, readForm, readText } from './session-cookie.ts';
import { originOf } from './viewer.ts';

type Deps = { db: Db; urls: Urls };

const PATH = '/login/device';

export function deviceRouter(services: Deps): Router {
  const { urls } = services;
  const router = express.Router({ caseSensitive: true, strict: true });

  router
    .route(`${PATH}/code`)
    .post((req, res) =>
      sendOAuthJson(req, res, async (form) => {
        const { deviceCode, userCode, interval } = await createDeviceRequest(services, {
          client: form.get('client_id') ?? '',
          deviceName: form.get('device_name') ?? '',
          scope: form.get('scope') ?? '',
          days: form.get('expires_in_days') ?? '',
          address: originOf(req).address,
        });
        const page = `${urls.base}${PATH}`;
        return {
          device_code: deviceCode,
          user_code: userCode,
          verification_uri: page,
          verification_uri_complete: `${page}?user_code=${userCode}`,
          expires_in: DEVICE_CODE_SECONDS,
          interval,
        };
      }),
    )
    .all(refuseOtherMethods(['POST']));

  router
    .route(`${PATH}/token`)
    .post((req, res) =>
      sendOAuthJson(req, res, async (form) => {
        const { token, scopes, expiresAt } = await redeemDeviceCode(services, {
          grantType: form.get('grant_type') ?? '',
          deviceCode: form.get('device_code') ?? '',
          client: form.get('client_id') ?? '',
        });
        return {
          access_token: token,
          token_type: 'Bearer',
          expires_in: Math.round((expiresAt.getTime() - Date.now()) / 1_000),
          scope: scopes.join(' '),
        };
      }),
    )
    .all(refuseOtherMethods(['POST']));

  router
    .route(PATH)
    .get(async (req, res) => {
      const { viewer } = req;
      const code = readText(req.query.user_code).slice(0, 40);
      if (viewer.kind !== 'account') {
        const to = code ? `${PATH}?user_code=${encodeURIComponent(code)}` : PATH;
        return void res.redirect(303, `/login?to=${encodeURIComponent(to)}`);
      }
      if (code === '') return sendCodeForm(res);
      await orSendCodeForm(res, async () => {
        const request = await findDeviceRequest(services, viewer, code);
        sendPage(res, {
          title: 'Sign in a program',
          body: renderApproval(request, viewer.username),
        });
      });
    })
    .post(async (req, res) => {
      demandSameOrigin(req, urls);
      const form = await readForm(req);
      const userCode = form.get('user_code') ?? '';
      const approve = form.get('answer') === 'approve';
      await orSendCodeForm(res, async () => {
        const request = await answerDeviceRequest(services, req.viewer, { userCode, approve });
        const result = renderResult(requesterName(request), approve);
        const body = `<p role="status">${result}</p>\n<p><a href="/">Home</a></p>\n`;
        sendPage(res, { title: 'Sign in a program', body });
      });
    })
    .all(refuseOtherMethods(['GET', 'POST']));

  return router;
}

/** Shows problems with a code above the form for another code. */
async function orSendCodeForm(res: Response, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    const { status, message, code } = toClientError(error);
    if (code !== 'not_found' && code !== 'rate_limit_exceeded') throw error;
    sendCodeForm(res, { problem: message, status });
  }
}

function renderResult(requester: string, approve: boolean): string {
  const name = `<b>${escapeHtml(requester)}</b>`;
  if (!approve) return `${name} was refused access.`;
  return `${name} will be signed in as you in a moment. You can close this page and return to the program. Its token is listed in your personal access tokens, where you can delete it.`;
}

/** Answers with JSON, and with errors in the form of RFC 6749, which programs expect. */
async function sendOAuthJson(
  req: Request,
  res: Response,
  work: (form: URLSearchParams) => Promise<object>,
): Promise<void> {
  res.set({ 'Cache-Control': 'no-store', Pragma: 'no-cache' });
  try {
    res.json(await work(await readForm(req)));
  } catch (error) {
    if (shouldLog(error) && !(error instanceof DeviceError)) throw error;
    const fault = error instanceof DeviceError ? error.code : 'invalid_request';
    const { message } = error as Error;
    res.status(400).json({ error: fault, error_description: message });
  }
}

function sendCodeForm(
  res: Response,
  { problem, status }: { problem?: string; status?: number } = {},
): void {
  const body = `
  ${problem ? `<p class="problem" role="alert">${escapeHtml(problem)}</p>` : ''}
  <form method="get" action="${PATH}">
    <label>Code shown by the program
      <input name="user_code" autocomplete="off" autocapitalize="characters" spellcheck="false" maxlength="20" placeholder="XXXX-XXXX" required autofocus>
    </label>
    <button class="primary">Continue</button>
  </form>
  <p>Enter only a code that is shown by a program you have started yourself.</p>
`;
  sendPage(res, { title: 'Sign in a program', body }, { status });
}

function renderApproval(request: DeviceRequest & { userCode: string }, username: string): string {
  const { scopes, days, address, createdAt, userCode } = request;
  const rights =
    scopes.length === 0
      ? 'everything that you can do'
      : scopes.map((scope) => `<code>${escapeHtml(scope)}</code>`).join(' ');
  const since = Math.round((Date.now() - createdAt.getTime()) / 60_000);
  return `
  <p>A program requests access as <b>${escapeHtml(username)}</b>.</p>
  <ul>
    <li>Name given by the program, not verified: <b>${escapeHtml(requesterName(request))}</b></li>
    <li>Requested from <b>${escapeHtml(address ?? 'an unknown address')}</b>, ${since === 0 ? 'just now' : `${since} min ago`} (${escapeHtml(createdAt.toISOString().slice(0, 16).replace('T', ' '))} UTC)</li>
    <li>Access: <b>${rights}</b>, for ${days} days</li>
    <li>Code: <b>${escapeHtml(userCode)}</b></li>
  </ul>
  <p class="problem">Approve only if you have just started this program yourself and it shows the same code. If somebody
    sent you the code or a link to this page, refuse: they want to act as you.</p>
  <form method="post" action="${PATH}">
    <input name="user_code" type="hidden" value="${escapeHtml(userCode)}">
    <button name="answer" value="refuse">Refuse</button>
    <button class="primary" name="answer" value="approve">Approve</button>
  </form>
`;
}
