import { ByteWriter } from "./bytes.ts";

/** Keys of the SOCKMAP: the IPv4 and the IPv6 listener. */
export const SOCKMAP_IPV4_KEY = 0;
export const SOCKMAP_IPV6_KEY = 1;
export const SOCKMAP_ENTRIES = 2;

/** A loadable program (BPF_PROG_TYPE_SK_LOOKUP, attach type BPF_SK_LOOKUP), 8 bytes an instruction. */
export interface SkLookupProgram {
  readonly program: Uint8Array;
  /** Indexes of the `ld_imm64` instructions whose immediate is the map's descriptor. */
  readonly mapFixups: readonly number[];
}

// Offsets in struct bpf_sk_lookup (linux/bpf.h).
const FAMILY = 8;
const PROTOCOL = 12;
const LOCAL_IP4 = 40;
const LOCAL_IP6 = 44;

const AF_INET = 2;
const AF_INET6 = 10;
const IPPROTO_TCP = 6;

const BPF_FUNC_MAP_LOOKUP_ELEM = 1;
const BPF_FUNC_SK_RELEASE = 86;
const BPF_FUNC_SK_ASSIGN = 124;
const BPF_PSEUDO_MAP_FD = 1;

const SK_DROP = 0;
const SK_PASS = 1;

// Operation codes (Documentation/bpf/standardization/instruction-set.rst).
const LDX_WORD = 0x61;
const STX_WORD = 0x63;
const LD_IMM64 = 0x18;
const MOV64_REG = 0xbf;
const MOV64_IMM = 0xb7;
const ADD64_IMM = 0x07;
const AND64_IMM = 0x57;
const MOV32_IMM = 0xb4;
const JEQ_IMM = 0x15;
const JNE_IMM = 0x55;
const JEQ_REG = 0x1d;
const JA = 0x05;
const CALL = 0x85;
const EXIT = 0x95;

type Label = "v6" | "select" | "pass" | "drop" | "mapped";

interface Instruction {
  readonly code: number;
  readonly destination: number;
  readonly source: number;
  readonly offset: number | Label;
  readonly immediate: number;
}

/**
 * Steers every TCP connection to the listener of its family, whatever address and port it asks for, except 127.0.0.0/8,
 * ::1 and IPv4-mapped loopback, where the agent's own servers listen.
 *
 * A missing listener drops (the client sees a reset) instead of passing, since passing would let the agent's own
 * wildcard listener impersonate the destination. Little-endian machines only (x86_64, aarch64).
 */
export function compileSkLookup(): SkLookupProgram {
  const code: Instruction[] = [];
  const labels = new Map<Label, number>();
  const emit = (
    operation: number,
    destination: number,
    source: number,
    offset: number | Label = 0,
    immediate = 0,
  ): void => {
    code.push({ code: operation, destination, source, offset, immediate });
  };
  const place = (label: Label): void => void labels.set(label, code.length);
  const loadContext = (destination: number, offset: number): void => emit(LDX_WORD, destination, 6, offset);

  // r6: context; r8: map key.
  emit(MOV64_REG, 6, 1);
  loadContext(2, PROTOCOL);
  emit(JNE_IMM, 2, 0, "pass", IPPROTO_TCP);
  loadContext(2, FAMILY);
  emit(JEQ_IMM, 2, 0, "v6", AF_INET6);
  emit(JNE_IMM, 2, 0, "pass", AF_INET);

  // Addresses are in network order, so the first octet is the low byte of the loaded word.
  loadContext(2, LOCAL_IP4);
  emit(AND64_IMM, 2, 0, 0, 0xff);
  emit(JEQ_IMM, 2, 0, "pass", 127);
  emit(MOV64_IMM, 8, 0, 0, SOCKMAP_IPV4_KEY);
  emit(JA, 0, 0, "select");

  place("v6");
  emit(MOV64_IMM, 8, 0, 0, SOCKMAP_IPV6_KEY);
  loadContext(2, LOCAL_IP6);
  emit(JNE_IMM, 2, 0, "select", 0);
  loadContext(2, LOCAL_IP6 + 4);
  emit(JNE_IMM, 2, 0, "select", 0);
  loadContext(2, LOCAL_IP6 + 8);
  // htonl(0xffff). The immediate of a 64-bit jump is sign-extended, hence the comparison with a zero-extended register.
  emit(MOV32_IMM, 3, 0, 0, 0xffff0000 | 0);
  emit(JEQ_REG, 2, 3, "mapped");
  emit(JNE_IMM, 2, 0, "select", 0);
  loadContext(2, LOCAL_IP6 + 12);
  // htonl(1).
  emit(JEQ_IMM, 2, 0, "pass", 0x01000000);
  emit(JA, 0, 0, "select");

  place("mapped");
  loadContext(2, LOCAL_IP6 + 12);
  emit(AND64_IMM, 2, 0, 0, 0xff);
  emit(JEQ_IMM, 2, 0, "pass", 127);

  place("select");
  emit(STX_WORD, 10, 8, -4);
  emit(MOV64_REG, 2, 10);
  emit(ADD64_IMM, 2, 0, 0, -4);
  const mapFixups = [code.length];
  emit(LD_IMM64, 1, BPF_PSEUDO_MAP_FD);
  emit(0, 0, 0);
  emit(CALL, 0, 0, 0, BPF_FUNC_MAP_LOOKUP_ELEM);
  emit(JEQ_IMM, 0, 0, "drop", 0);
  // r7: the referenced socket, released on every path below.
  emit(MOV64_REG, 7, 0);
  emit(MOV64_REG, 1, 6);
  emit(MOV64_REG, 2, 7);
  emit(MOV64_IMM, 3, 0);
  emit(CALL, 0, 0, 0, BPF_FUNC_SK_ASSIGN);
  emit(MOV64_REG, 8, 0);
  emit(MOV64_REG, 1, 7);
  emit(CALL, 0, 0, 0, BPF_FUNC_SK_RELEASE);
  emit(JNE_IMM, 8, 0, "drop", 0);

  place("pass");
  emit(MOV64_IMM, 0, 0, 0, SK_PASS);
  emit(EXIT, 0, 0);
  place("drop");
  emit(MOV64_IMM, 0, 0, 0, SK_DROP);
  emit(EXIT, 0, 0);

  const writer = new ByteWriter();
  for (const [index, instruction] of code.entries()) {
    const { offset } = instruction;
    const resolved = typeof offset === "number" ? offset : labels.get(offset)! - index - 1;
    writer
      .u8(instruction.code)
      .u8(instruction.destination | (instruction.source << 4))
      .i16(resolved)
      .i32(instruction.immediate);
  }
  return { program: writer.finish(), mapFixups };
}
