import { describe, expect, it } from "vitest";
import { type OutputChunk, OutputLog } from "./output-log.ts";

const chunk = (text: string): OutputChunk => ({ stream: "stdout", data: Buffer.from(text) });
const options = { limitBytes: 8, readerChunks: 2 };

async function all(log: OutputLog): Promise<string> {
  let text = "";
  for await (const { data } of log.read()) text += Buffer.from(data).toString();
  return text;
}

describe("OutputLog", () => {
  it("replays what came before and goes on live, without a gap", async () => {
    const log = new OutputLog(options, false);
    await log.append(chunk("ab"));
    const reading = all(log);
    await log.append(chunk("cd"));
    log.end();
    expect(await reading).toBe("abcd");
  });
  it("loses nothing while an attachment is awaited: the writer waits", async () => {
    const log = new OutputLog(options, true);
    let written = 0;
    const writing = (async () => {
      for (let index = 0; index < 20; index += 1) {
        await log.append(chunk("xxxx"));
        written += 1;
      }
      log.end();
    })();
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(written).toBe(2);
    expect(await all(log)).toBe("xxxx".repeat(20));
    await writing;
  });
  it("drops the oldest and counts it when nobody is awaited", async () => {
    const log = new OutputLog(options, false);
    for (const text of ["1111", "2222", "3333"]) await log.append(chunk(text));
    log.end();
    expect(await all(log)).toBe("22223333");
    expect(log.dropped).toBe(4);
  });
  it("gives a late reader everything after the end", async () => {
    const log = new OutputLog(options, false);
    await log.append(chunk("done"));
    log.end();
    expect(await all(log)).toBe("done");
  });
  it("stops at once when an attachment that waits for output is aborted", async () => {
    const log = new OutputLog(options, false);
    const gone = new AbortController();
    const next = log.read(gone.signal).next();
    await new Promise((resolve) => setTimeout(resolve, 5));
    gone.abort();
    expect(await next).toEqual({ done: true, value: undefined });
  });
  it("lets the process go on when a reader leaves in the middle", async () => {
    const log = new OutputLog(options, false);
    const reader = log.read();
    await log.append(chunk("a"));
    await reader.next();
    await reader.return(undefined);
    for (let index = 0; index < 10; index += 1) await log.append(chunk("b"));
    log.end();
  });
});
