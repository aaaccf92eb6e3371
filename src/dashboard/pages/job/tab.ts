/** Shows the job's status in the tab icon, and notifies the user when a watched job finishes. */
import { useEffect, useRef, useState } from 'react';
import { formatEnum } from '../../ui/format.ts';
import { isFinished, type JobStatus } from '../../ui/status.tsx';

const COLOURS: Record<JobStatus, string> = {
  QUEUED: '#c58a1c',
  RUNNING: '#2b86c5',
  SUCCEEDED: '#3f9a3a',
  FAILED: '#cc3a2b',
  TIMED_OUT: '#cc3a2b',
  CANCELLED: '#8f8072',
};

function statusIcon(status: JobStatus): string {
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#f3ead9"/><circle cx="16" cy="16" r="10" fill="${COLOURS[status]}"/></svg>`;
  return `data:image/svg+xml,${encodeURIComponent(svg)}`;
}

export type Watch = {
  /** Null if the browser has no notifications or the user blocked them for this site. */
  isOn: boolean | null;
  toggle: () => void;
};

export function useTabState({ name, status }: { name: string; status: JobStatus }): Watch {
  const isSupported = 'Notification' in window && isSecureContext;
  const [isOn, setOn] = useState(false);
  // Reading the permission waits for another process, too long for each time that the page is drawn.
  const [isDenied, setDenied] = useState(() => isSupported && isNotificationDenied());
  const before = useRef(status);
  useEffect(() => {
    const icon = document.getElementById('icon') as HTMLLinkElement | null;
    if (!icon) return;
    icon.href = statusIcon(status);
    return () => {
      icon.href = '/favicon.svg';
    };
  }, [status]);
  useEffect(() => {
    if (isOn && !isFinished(before.current) && isFinished(status))
      new Notification(`${name}: ${formatEnum(status)}`, { tag: `job ${name}` });
    before.current = status;
  }, [name, status, isOn]);
  return {
    isOn: isSupported && !isDenied ? isOn : null,
    async toggle() {
      const isGranted = isOn || (await Notification.requestPermission()) === 'granted';
      setDenied(isNotificationDenied());
      if (isGranted) setOn(!isOn);
    },
  };
}

function isNotificationDenied(): boolean {
  return Notification.permission === 'denied';
}
