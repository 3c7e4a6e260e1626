import { Duplex } from "node:stream";
import { connect } from "node:tls";
import { describe, expect, test } from "vitest";
import { sniff } from "./sniff.ts";

/** The first bytes that a real client sends. */
function clientHello(options: { servername?: string; ALPNProtocols?: string[] }): Promise<Buffer> {
  return new Promise((resolve) => {
    const pieces: Buffer[] = [];
    const stream = new Duplex({
      read() {},
      write(chunk: Buffer, _encoding, done) {
        pieces.push(chunk);
        done();
        setImmediate(() => {
          client.on("error", () => undefined);
          client.destroy();
          resolve(Buffer.concat(pieces));
        });
      },
    });
    const client = connect({ socket: stream, rejectUnauthorized: true, ...options });
    client.on("error", () => undefined);
  });
}

describe("the first bytes", () => {
  test("of a real TLS client show its server name and protocols, however they arrive", async () => {
    const bytes = await clientHello({ servername: "api.example.com", ALPNProtocols: ["h2", "http/1.1"] });
    expect(sniff(bytes)).toEqual({ kind: "tls", hello: { serverName: "api.example.com", alpn: ["h2", "http/1.1"] } });
    for (let length = 1; length < bytes.length; length += 1) expect(sniff(bytes.subarray(0, length)).kind).toBe("more");
    expect(sniff(await clientHello({}))).toEqual({ kind: "tls", hello: { serverName: undefined, alpn: undefined } });
  });

  test("a hello cut into several records is put together", async () => {
    const bytes = await clientHello({ servername: "api.example.com" });
    const body = bytes.subarray(5);
    const records: Buffer[] = [];
    for (let at = 0; at < body.length; at += 40) {
      const part = body.subarray(at, at + 40);
      records.push(Buffer.from([0x16, 3, 1, 0, part.length]), part);
    }
    expect(sniff(Buffer.concat(records))).toMatchObject({ kind: "tls", hello: { serverName: "api.example.com" } });
  });

  test.each<[string, string, string]>([
    ["GET / HTTP/1.1\r\n", "http1", "a request"],
    ["get / HTTP/1.1\r\n", "http1", "a lower-case method"],
    ["M-SEARCH * HTTP/1.1\r\n", "http1", "a method with a hyphen"],
    ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "h2", "the HTTP/2 preface"],
    ["PRI * HTTP/2.0\r\n", "more", "half a preface"],
    ["PRI * HTTP/1.1\r\n", "http1", "a method that starts like the preface"],
    ["P", "more", "one letter"],
    ["GET ", "more", "a method"],
    ["SSH-2.0-OpenSSH_9\r\n", "other", "SSH"],
    ["\x00\x01", "other", "binary"],
    ["\x16", "more", "one byte of TLS"],
    ["\x16\x02\x00", "other", "a record of SSL 2"],
    ["\x16\x03\x09", "other", "a version that does not exist"],
    ["\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00", "other", "a handshake that is no ClientHello"],
    ["\x16\x03\x01\x00\x00", "other", "an empty record"],
    ["\x16\x03\x01\xff\xff", "other", "an oversized record"],
    [" GET / HTTP/1.1", "other", "a leading blank"],
    ["\r\nGET / HTTP/1.1", "other", "a leading line end"],
  ])("%j is %s", (text, kind) => {
    expect(sniff(Buffer.from(text, "latin1")).kind).toBe(kind);
  });

  test("a hello that lies about its lengths is no hello, whatever byte is changed", async () => {
    const bytes = await clientHello({ servername: "api.example.com" });
    for (let at = 0; at < bytes.length; at += 1) {
      for (const value of [0, 0xff, bytes[at]! ^ 1]) {
        const changed = Buffer.from(bytes);
        changed[at] = value;
        expect(["tls", "other", "more", "http1"]).toContain(sniff(changed).kind);
      }
    }
  });
});
