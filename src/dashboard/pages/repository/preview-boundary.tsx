import { Component, type ReactNode } from 'react';

/** Shows the text itself if its preview throws an error, so that the rest of the page stays usable. Its key is the text. */
export class PreviewBoundary extends Component<
  { text: string; children: ReactNode },
  { error?: unknown }
> {
  override state: { error?: unknown } = {};

  static getDerivedStateFromError(error: unknown) {
    return { error };
  }

  override render() {
    if (!('error' in this.state)) return this.props.children;
    const { error } = this.state;
    return (
      <div className="space-y-3 p-4">
        <p role="alert" className="rounded-md bg-warn-soft px-3 py-2 text-sm break-words">
          The preview could not be shown, so this is the text of the file.{' '}
          {error instanceof Error && error.message}
        </p>
        <pre
          // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable with the keyboard.
          tabIndex={0}
          className="overflow-x-auto text-[13px] whitespace-pre-wrap"
        >
          {this.props.text}
        </pre>
      </div>
    );
  }
}
