/** Colours of one stream. Each stream decides for itself: redirecting one leaves the other styled. */
export interface Style {
  readonly on: boolean;
  bold(text: string): string;
  dim(text: string): string;
  red(text: string): string;
  green(text: string): string;
  yellow(text: string): string;
  cyan(text: string): string;
}

export type ColorChoice = "auto" | "always" | "never";

/** `always` and `never` are obeyed; otherwise a terminal gets colours unless NO_COLOR (https://no-color.org) or TERM=dumb says no. */
export function styleFor(
  isTerminal: boolean,
  choice: ColorChoice,
  env: Readonly<Record<string, string | undefined>>,
): Style {
  const plain = (env["NO_COLOR"] ?? "") !== "" || env["TERM"] === "dumb";
  const on = choice === "always" || (choice === "auto" && isTerminal && !plain);
  const wrap = (open: number, close: number) => (text: string) =>
    on ? `\u001b[${open}m${text}\u001b[${close}m` : text;
  return {
    on,
    bold: wrap(1, 22),
    dim: wrap(2, 22),
    red: wrap(31, 39),
    green: wrap(32, 39),
    yellow: wrap(33, 39),
    cyan: wrap(36, 39),
  };
}
