import { closeSync, openSync, readSync } from "node:fs";

/**
 * Loaded before a program of the product: its wall clock is the machine's plus the milliseconds that the file
 * `$OPENSHELL_TEST_CLOCK.<part>` holds, as they are at each look. Timers and the monotonic clock stay true, as they do
 * when somebody sets a machine's clock. Certificates are compared with the real time, inside OpenSSL.
 */
export function shiftClock(part) {
  const folder = process.env.OPENSHELL_TEST_CLOCK;
  if (folder === undefined) return;
  const fd = openSync(`${folder}.${part}`, "r");
  process.on("exit", () => closeSync(fd));
  const buffer = Buffer.alloc(24);
  const offset = () => Number(buffer.toString("latin1", 0, readSync(fd, buffer, 0, buffer.length, 0))) || 0;
  const RealDate = Date;
  const realNow = Date.now;
  RealDate.now = () => realNow() + offset();
  globalThis.Date = new Proxy(RealDate, {
    apply: () => new RealDate(RealDate.now()).toString(),
    construct: (target, args, newTarget) =>
      Reflect.construct(target, args.length === 0 ? [RealDate.now()] : args, newTarget),
  });
}
