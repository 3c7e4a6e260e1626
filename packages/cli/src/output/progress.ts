import type { Style } from "./style.ts";

/** Nothing is shown for waits shorter than this. Milliseconds. */
export const PROGRESS_DELAY_MS = 300;
const FRAME_MS = 100;
const FRAMES = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/** A line that says what is being waited for, on a terminal only, and that vanishes. Of nested ones the innermost is shown. */
export class Progress implements Disposable {
  static readonly #running: Progress[] = [];
  readonly #stream: NodeJS.WriteStream;
  readonly #style: Style;
  #text: string;
  #timer: NodeJS.Timeout | undefined;
  #shown = false;
  #frame = 0;
  #onShow: (() => void) | undefined;
  readonly #started = performance.now();

  constructor(stream: NodeJS.WriteStream, style: Style, text: string) {
    this.#stream = stream;
    this.#style = style;
    this.#text = text;
  }

  /**
   * Begins to show `text` after {@link PROGRESS_DELAY_MS}; `onShow` is called then, to look closer at what takes so long.
   * Does nothing when the stream is no terminal.
   */
  static start(stream: NodeJS.WriteStream, style: Style, text: string, onShow?: () => void): Progress {
    const progress = new Progress(stream, style, text);
    progress.#onShow = onShow;
    if (stream.isTTY) {
      Progress.#running.push(progress);
      progress.#timer = setTimeout(() => progress.#animate(), PROGRESS_DELAY_MS);
      progress.#timer.unref();
    }
    return progress;
  }

  update(text: string): void {
    this.#text = text;
    if (this.#shown) this.#draw();
  }

  /** Makes room for another line; what is shown comes back below it. */
  static clear(): void {
    const shown = Progress.#running.at(-1);
    if (shown !== undefined) shown.#erase();
  }

  /** Removes the line. */
  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const place = Progress.#running.indexOf(this);
    if (place !== -1) Progress.#running.splice(place, 1);
    this.#erase();
    this.#shown = false;
  }

  [Symbol.dispose](): void {
    this.stop();
  }

  #erase(): void {
    if (this.#shown) this.#stream.write("\r\u001b[K");
  }

  #animate(): void {
    if (!this.#shown) this.#onShow?.();
    this.#draw();
    this.#timer = setTimeout(() => this.#animate(), FRAME_MS);
    this.#timer.unref();
  }

  #draw(): void {
    this.#shown = true;
    if (Progress.#running.at(-1) !== this) return;
    const seconds = Math.floor((performance.now() - this.#started) / 1000);
    const elapsed = seconds < 1 ? "" : this.#style.dim(` (${seconds} s)`);
    const frame = FRAMES[this.#frame % FRAMES.length]!;
    this.#frame += 1;
    // Longer than the terminal is wide would leave lines behind.
    const room = Math.max(10, (this.#stream.columns || 80) - 12);
    this.#stream.write(`\r\u001b[K${this.#style.cyan(frame)} ${this.#text.slice(0, room)}${elapsed}`);
  }
}
