import { isIPv4 } from "node:net";
import { describe, expect, it } from "vitest";
import { compileSkLookup } from "./sk-lookup.ts";

type Outcome = "v4" | "v6" | "pass" | "drop";

/** Runs the program in a small eBPF machine whose map holds two sockets; checks that every acquired socket is released. */
function lookup(
  destination: string,
  options: { protocol?: number; family?: number; map?: readonly number[]; assign?: number } = {},
): Outcome {
  const { program, mapFixups } = compileSkLookup();
  const context = new DataView(new ArrayBuffer(72));
  const v4 = isIPv4(destination);
  context.setUint32(8, options.family ?? (v4 ? 2 : 10), true);
  context.setUint32(12, options.protocol ?? 6, true);
  if (v4) for (const [i, octet] of destination.split(".").entries()) context.setUint8(40 + i, Number(octet));
  else for (const [i, word] of expand(destination).entries()) context.setUint16(44 + 2 * i, word, false);

  const code = new DataView(program.buffer, program.byteOffset, program.length);
  const stack = new DataView(new ArrayBuffer(512));
  const [CONTEXT, STACK, MAP, SOCKET] = [0x10000n, 0x20000n, 0x30000n, 0x40000n];
  const registers = new BigUint64Array(11);
  registers[1] = CONTEXT;
  registers[10] = STACK + 512n;
  let held = 0;
  let assigned: number | undefined;

  const call = (helper: number): bigint => {
    if (helper === 1) {
      expect(registers[1]).toBe(MAP);
      const key = stack.getUint32(Number(registers[2]! - STACK), true);
      if (!(options.map ?? [0, 1]).includes(key)) return 0n;
      held++;
      return SOCKET + BigInt(key);
    }
    if (helper === 124) {
      expect(registers[1]).toBe(CONTEXT);
      if (options.assign !== undefined) return BigInt.asUintN(64, BigInt(options.assign));
      assigned = Number(registers[2]! - SOCKET);
      return 0n;
    }
    if (helper === 86) {
      held--;
      return 0n;
    }
    throw new Error(`helper ${helper} is not allowed here`);
  };

  for (let pc = 0, steps = 0; steps < 200; pc++, steps++) {
    const operation = code.getUint8(pc * 8);
    const [to, from] = [code.getUint8(pc * 8 + 1) & 15, code.getUint8(pc * 8 + 1) >> 4];
    const offset = code.getInt16(pc * 8 + 2, true);
    const immediate = BigInt.asUintN(64, BigInt(code.getInt32(pc * 8 + 4, true)));
    const jump = (taken: boolean): void => {
      pc += taken ? offset : 0;
    };
    if (operation === 0x61)
      registers[to] = BigInt(context.getUint32(Number(registers[from]! - CONTEXT) + offset, true));
    else if (operation === 0x63)
      stack.setUint32(Number(registers[to]! - STACK) + offset, Number(registers[from]!), true);
    else if (operation === 0x18) {
      expect([from, mapFixups.includes(pc)]).toEqual([1, true]);
      registers[to] = MAP;
      pc++;
    } else if (operation === 0xbf) registers[to] = registers[from]!;
    else if (operation === 0xb7) registers[to] = immediate;
    else if (operation === 0xb4) registers[to] = immediate & 0xffffffffn;
    else if (operation === 0x07) registers[to] = registers[to]! + immediate;
    else if (operation === 0x57) registers[to] = registers[to]! & immediate;
    else if (operation === 0x15) jump(registers[to] === immediate);
    else if (operation === 0x55) jump(registers[to] !== immediate);
    else if (operation === 0x1d) jump(registers[to] === registers[from]);
    else if (operation === 0x05) jump(true);
    else if (operation === 0x85) {
      registers[0] = call(Number(immediate));
      registers.fill(0xdeadn, 1, 6);
    } else if (operation === 0x95) {
      expect(held).toBe(0);
      if (registers[0] === 0n) return "drop";
      return assigned === undefined ? "pass" : assigned === 0 ? "v4" : "v6";
    } else throw new Error(`operation ${operation.toString(16)} is unknown`);
  }
  throw new Error("the program does not end");
}

/** Eight words of an IPv6 address. */
function expand(address: string): number[] {
  const [head = "", tail] = address.split("::");
  const words = (text: string): number[] =>
    text === "" ? [] : text.split(":").map((word) => Number.parseInt(word, 16));
  const front = words(head);
  const back = words(tail ?? "");
  return [...front, ...Array<number>(8 - front.length - back.length).fill(0), ...back];
}

describe("sk_lookup program", () => {
  it.each(["1.2.3.4", "126.255.255.255", "128.0.0.0", "10.0.0.127", "169.254.169.254", "255.255.255.255", "0.0.0.0"])(
    "steers %s to the IPv4 listener",
    (address) => expect(lookup(address)).toBe("v4"),
  );
  it.each(["127.0.0.1", "127.0.0.0", "127.255.255.255"])("leaves %s to the agent's own servers", (address) =>
    expect(lookup(address)).toBe("pass"),
  );
  it.each([
    "2001:db8::1",
    "fe80::1",
    "fd00::",
    "::",
    "::2",
    "::1:0:1",
    "1::1",
    "0:1::1",
    "::7f00:1",
    "::ffff:0:1",
    "::ffff:102:304",
    "::fffe:7f00:1",
  ])("steers %s to the IPv6 listener", (address) => expect(lookup(address)).toBe("v6"));
  it.each(["::1", "::ffff:7f00:1", "::ffff:7fff:ffff"])("leaves %s to the agent's own servers", (address) =>
    expect(lookup(address)).toBe("pass"),
  );
  it("concerns itself with TCP only", () => {
    expect(lookup("1.2.3.4", { protocol: 17 })).toBe("pass");
    expect(lookup("1.2.3.4", { family: 1 })).toBe("pass");
  });
  it("drops instead of passing when there is no listener or it cannot be assigned", () => {
    expect(lookup("1.2.3.4", { map: [1] })).toBe("drop");
    expect(lookup("2001:db8::1", { map: [] })).toBe("drop");
    expect(lookup("1.2.3.4", { assign: -3 })).toBe("drop");
  });
});
