/** Server-sent events over `fetch`, which can send credentials and headers, unlike an `EventSource`. */
import { LoamError } from './errors.ts';
import { chunksOf, unreachable } from './transport.ts';

export type ServerEvent = { id: string; event: string; data: string };

/** A line of a log has 64 KiB at most; as JSON it can be six times as long. */
const MAX_EVENT_CHARACTERS = 2 ** 20;

/** Reads the events of an answer until it ends. @throws LoamError `unreachable` when it is cut or silent */
export async function* readEvents(response: Response, server: string): AsyncGenerator<ServerEvent> {
  const decoder = new TextDecoder();
  let rest = '';
  let event = { id: '', event: 'message', data: '' };
  try {
    for await (const chunk of chunksOf(response)) {
      rest += decoder.decode(chunk, { stream: true });
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop() ?? '';
      for (const line of lines) {
        if (line !== '') addLine(event, line);
        else if (event.data !== '') {
          yield event;
          event = { id: event.id, event: 'message', data: '' };
        }
      }
      if (rest.length + event.data.length > MAX_EVENT_CHARACTERS)
        throw new LoamError('bad_answer', `${server} sent an event that is too long.`);
    }
  } catch (error) {
    throw error instanceof LoamError ? error : unreachable(server, error);
  }
}

function addLine(event: ServerEvent, line: string): void {
  const [, name = '', value = ''] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
  if (name === 'data') event.data += event.data === '' ? value : `\n${value}`;
  else if (name === 'id') event.id = value;
  else if (name === 'event') event.event = value;
}
