const CTRL_D = 0x04;
const CTRL_P = 0x10;
const CTRL_Q = 0x11;

/** What a person is told who left a process. */
export function detachedLine(name: string): string {
  return `detached; ${name} runs on. \`openshell sandbox connect ${name}\` joins it again, \`openshell sandbox delete ${name}\` removes it`;
}

/** Finds Ctrl-P Ctrl-Q (and Ctrl-D where that leaves, too) in what is typed, also across reads; a Ctrl-P that is not followed by it is passed on. */
export class DetachKeys {
  readonly #endLeaves: boolean;
  #pending = false;

  constructor(endLeaves = false) {
    this.#endLeaves = endLeaves;
  }

  feed(data: Uint8Array): { readonly pass: Uint8Array; readonly detach: boolean } {
    const pass: number[] = [];
    for (const byte of data) {
      if (this.#pending && byte === CTRL_Q) return { pass: Uint8Array.from(pass), detach: true };
      if (this.#pending) pass.push(CTRL_P);
      this.#pending = byte === CTRL_P;
      if (this.#endLeaves && byte === CTRL_D) return { pass: Uint8Array.from(pass), detach: true };
      if (!this.#pending) pass.push(byte);
    }
    return { pass: Uint8Array.from(pass), detach: false };
  }
}
