import { resourceExhausted } from "@openshell/api/errors.ts";

export interface PlacesOptions {
  /** Calls at once, whoever makes them. */
  readonly all: number;
  /** Of these, calls of connections that proved nothing: the rest stays free for those who said who they are. */
  readonly strangers: number;
  /** For the error: what there is too much of, and what to do. */
  readonly what: string;
  readonly next: string;
}

/** Bounds the calls of one kind that last. */
export class Places {
  readonly #options: PlacesOptions;
  #taken = 0;
  #strangers = 0;

  constructor(options: PlacesOptions) {
    this.#options = options;
  }

  /** Takes a place until it is disposed of. @throws ApiError RESOURCE_EXHAUSTED */
  take(stranger: boolean): Disposable {
    const { all, strangers, what, next } = this.#options;
    if (this.#taken >= all || (stranger && this.#strangers >= strangers)) {
      throw resourceExhausted(`more than ${stranger ? strangers : all} ${what}`, { next });
    }
    const mine = stranger ? 1 : 0;
    this.#taken += 1;
    this.#strangers += mine;
    return {
      [Symbol.dispose]: () => {
        this.#taken -= 1;
        this.#strangers -= mine;
      },
    };
  }
}
