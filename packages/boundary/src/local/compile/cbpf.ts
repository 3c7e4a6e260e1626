import { ByteWriter } from "./bytes.ts";

/** Classic BPF operation codes that seccomp accepts and we use (linux/bpf_common.h). */
export const LOAD_WORD = 0x20;
export const AND = 0x54;
const JUMP_EQUAL = 0x15;
const JUMP_GREATER_OR_EQUAL = 0x35;
const JUMP_ANY_BIT = 0x45;
export const RETURN = 0x06;

/** The kernel refuses longer programs (BPF_MAXINSNS). */
export const MAX_INSTRUCTIONS = 4096;

type Test = "==" | ">=" | "&";
const TEST_CODES: Readonly<Record<Test, number>> = {
  "==": JUMP_EQUAL,
  ">=": JUMP_GREATER_OR_EQUAL,
  "&": JUMP_ANY_BIT,
};

interface Instruction {
  readonly code: number;
  readonly k: number;
  /** Label jumped to, or undefined for the next instruction. */
  readonly whenTrue: string | undefined;
  readonly whenFalse: string | undefined;
}

/** Assembles a classic BPF program with forward jumps to labels. */
export class Assembler {
  readonly #code: Instruction[] = [];
  readonly #labels = new Map<string, number>();

  /** A = 32-bit word at `offset` of struct seccomp_data. */
  load(offset: number): this {
    return this.#push({ code: LOAD_WORD, k: offset, whenTrue: undefined, whenFalse: undefined });
  }

  and(mask: number): this {
    return this.#push({ code: AND, k: mask, whenTrue: undefined, whenFalse: undefined });
  }

  /** Jumps when the test on A holds (`&`: any bit of `k` set), else to `otherwise` or the next instruction. */
  jump(test: Test, k: number, whenTrue: string | undefined, otherwise?: string): this {
    return this.#push({ code: TEST_CODES[test], k, whenTrue, whenFalse: otherwise });
  }

  ret(value: number): this {
    return this.#push({ code: RETURN, k: value, whenTrue: undefined, whenFalse: undefined });
  }

  label(name: string): this {
    if (this.#labels.has(name)) throw new Error(`label ${name} placed twice`);
    this.#labels.set(name, this.#code.length);
    return this;
  }

  /** Eight bytes an instruction: code, true and false offsets, operand. */
  assemble(): Uint8Array {
    if (this.#code.length > MAX_INSTRUCTIONS) throw new RangeError("filter exceeds BPF_MAXINSNS");
    const writer = new ByteWriter();
    for (const [index, instruction] of this.#code.entries()) {
      writer
        .u16(instruction.code)
        .u8(this.#offset(index, instruction.whenTrue))
        .u8(this.#offset(index, instruction.whenFalse))
        .u32(instruction.k >>> 0);
    }
    return writer.finish();
  }

  #push(instruction: Instruction): this {
    this.#code.push(instruction);
    return this;
  }

  /** Classic BPF jumps forward only, by at most 255. */
  #offset(index: number, label: string | undefined): number {
    if (label === undefined) return 0;
    const target = this.#labels.get(label);
    if (target === undefined) throw new Error(`label ${label} is not placed`);
    const offset = target - index - 1;
    if (offset < 0 || offset > 255) throw new RangeError(`jump to ${label} spans ${offset} instructions`);
    return offset;
  }
}
