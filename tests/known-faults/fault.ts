/** Which run a test is of: the unit tests, or the system tests as whoever starts them. */
export type Suite = "unit" | "system";

/** A test by its file and its exact title, as the file spells it. */
export interface NamedTest {
  readonly file: string;
  readonly title: string;
  /** "unit" when it is left out. */
  readonly suite?: Suite;
}

/** An edit that takes a part of a defence out: `from` is in the file exactly once. */
export interface Edit {
  readonly file: string;
  readonly from: string;
  readonly to: string;
}

/** A test, and the defence without which it fails. */
export interface Guard {
  readonly test: NamedTest;
  readonly without: readonly Edit[];
  /** Without its defence the test waits until its time is over, as the fault itself is a wait without end. */
  readonly hangs?: true;
}

/** A fault of the implementation before this one. */
export interface Fault {
  /** The names under which it is known: issues and review findings there, or of a project that uses it. */
  readonly ids: readonly string[];
  /** What must not happen here. */
  readonly mustNot: string;
  readonly guards?: readonly Guard[];
  /** The part of this product, not built yet, in which alone the fault could be. */
  readonly notBuilt?: string;
  /** Why no test of ours can fail for it: it is measured, or there is nothing here that could have it. */
  readonly otherwise?: string;
}

/** Faults of one area. */
export interface Group {
  readonly name: string;
  readonly faults: readonly Fault[];
}
