import { createGunzip } from "node:zlib";
import { badArchive } from "./tar.ts";

/** Compressions by their first bytes that are known and not read. */
const OTHERS: readonly (readonly [name: string, magic: readonly number[], program: string])[] = [
  ["zstd", [0x28, 0xb5, 0x2f, 0xfd], "zstd -d"],
  ["xz", [0xfd, 0x37, 0x7a, 0x58, 0x5a], "xz -d"],
  ["bzip2", [0x42, 0x5a, 0x68], "bzip2 -d"],
  ["zip", [0x50, 0x4b, 0x03, 0x04], "unzip"],
];

/** The archive behind a gzip or plain stream; what it is tells its content, not its name. Throws `image_invalid`. */
export async function decompressed(source: AsyncIterable<Uint8Array>): Promise<AsyncIterable<Uint8Array>> {
  const chunks = source[Symbol.asyncIterator]();
  let head = Buffer.alloc(0);
  while (head.length < 6) {
    const next = await chunks.next();
    if (next.done === true) break;
    head = Buffer.concat([head, next.value]);
  }
  if (head.length === 0) throw badArchive("it is empty");
  const starts = (magic: readonly number[]) => magic.every((byte, at) => head[at] === byte);
  const other = OTHERS.find(([, magic]) => starts(magic));
  if (other !== undefined) throw badArchive(`it is compressed with ${other[0]}`, `Unpack it first: ${other[2]}`);
  const whole = rest(head, chunks);
  return starts([0x1f, 0x8b]) ? gunzipped(whole) : whole;
}

async function* rest(head: Buffer, chunks: AsyncIterator<Uint8Array>): AsyncIterable<Uint8Array> {
  yield head;
  for (let next = await chunks.next(); next.done !== true; next = await chunks.next()) yield next.value;
}

/** Written by hand, since a pipeline would hide which side failed: the stream's own errors are the archive's fault. */
async function* gunzipped(chunks: AsyncIterable<Uint8Array>): AsyncIterable<Uint8Array> {
  const gunzip = createGunzip();
  let sourceError: unknown;
  const feed = (async () => {
    try {
      for await (const chunk of chunks) {
        if (gunzip.destroyed) return;
        if (!gunzip.write(chunk)) await drained(gunzip);
      }
      gunzip.end();
    } catch (error) {
      sourceError = error;
      gunzip.destroy(error as Error);
    }
  })();
  try {
    for await (const chunk of gunzip) yield chunk as Uint8Array;
  } catch (error) {
    if (sourceError !== undefined) throw sourceError;
    throw badArchive(`its compression is damaged (${(error as Error).message})`);
  } finally {
    gunzip.destroy();
    await feed;
  }
}

/** Room again, or the end of the stream. */
function drained(stream: ReturnType<typeof createGunzip>): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      stream.off("drain", done).off("close", done);
      resolve();
    };
    stream.on("drain", done).on("close", done);
    if (stream.destroyed) done();
  });
}
