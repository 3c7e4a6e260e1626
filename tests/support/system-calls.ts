/** Numbers of the system calls that the small Perl programs here make: Perl has no wrapper for them. */
export interface SystemCalls {
  readonly mount: number;
  readonly prctl: number;
  readonly unshare: number;
}

/** The generic table of Linux, which newer architectures share. */
const GENERIC: SystemCalls = { mount: 40, prctl: 167, unshare: 97 };

const BY_ARCHITECTURE: Readonly<Record<string, SystemCalls>> = {
  x64: { mount: 165, prctl: 157, unshare: 272 },
  arm64: GENERIC,
  riscv64: GENERIC,
};

/** The numbers of this architecture. */
export function systemCalls(): SystemCalls {
  const numbers = BY_ARCHITECTURE[process.arch];
  if (numbers === undefined) throw new Error(`no system call numbers known for ${process.arch}`);
  return numbers;
}
