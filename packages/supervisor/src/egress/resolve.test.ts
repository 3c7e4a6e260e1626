import { createSocket, type Socket } from "node:dgram";
import { afterEach, describe, expect, test } from "vitest";
import { formatAddress, parseAddress } from "./address.ts";
import { formatAnswer, parseQuery, RCODE, TYPE } from "./dns/codec.ts";
import { MAX_ADDRESSES } from "./limits.ts";
import { createResolver } from "./resolve.ts";

const sockets: Socket[] = [];
afterEach(() => {
  for (const socket of sockets.splice(0)) socket.close();
});

/** A name server on loopback; `zone` gives the address of a name and type, or nothing. */
async function nameServer(
  zone: (name: string, type: number) => string | undefined,
): Promise<{ server: string; asked: string[] }> {
  const socket = createSocket("udp4");
  sockets.push(socket);
  const asked: string[] = [];
  socket.on("message", (message, peer) => {
    const parsed = parseQuery(message);
    if (parsed.kind !== "question") return;
    const { question } = parsed;
    asked.push(`${question.name} ${question.type}`);
    const address = zone(question.name, question.type);
    const rcode = address === undefined && question.name.startsWith("missing") ? 3 : RCODE.noError;
    const bytes = address === undefined ? undefined : Buffer.from(parseAddress(address)!);
    socket.send(formatAnswer(question, rcode, bytes), peer.port, peer.address);
  });
  await new Promise<void>((resolve) => socket.bind(0, "127.0.0.1", resolve));
  return { server: `127.0.0.1:${socket.address().port}`, asked };
}

async function texts(resolver: ReturnType<typeof createResolver>, host: string): Promise<string[]> {
  return (await resolver.resolve(host)).map(formatAddress);
}

describe("upstream resolution", () => {
  test("asks the configured servers for both families, IPv4 first", async () => {
    const { server, asked } = await nameServer((_, type) => (type === TYPE.a ? "93.184.216.34" : "2606:4700::1111"));
    expect(await texts(createResolver([server]), "api.example.com")).toEqual(["93.184.216.34", "2606:4700::1111"]);
    expect(asked.sort()).toEqual(["api.example.com 1", "api.example.com 28"]);
  });

  test("one family is enough", async () => {
    const { server } = await nameServer((_, type) => (type === TYPE.aaaa ? "2606:4700::1111" : undefined));
    expect(await texts(createResolver([server]), "api.example.com")).toEqual(["2606:4700::1111"]);
  });

  test("a name that does not exist is an error that names it", async () => {
    const { server } = await nameServer(() => undefined);
    await expect(createResolver([server]).resolve("missing.example.com")).rejects.toMatchObject({
      code: "resolution_failed",
      message: expect.stringContaining("missing.example.com"),
    });
    await expect(createResolver([server]).resolve("empty.example.com")).rejects.toMatchObject({
      code: "resolution_failed",
    });
  });

  test("literals are their own answer and nobody is asked", async () => {
    const { server, asked } = await nameServer(() => "1.1.1.1");
    expect(await texts(createResolver([server]), "8.8.8.8")).toEqual(["8.8.8.8"]);
    expect(await texts(createResolver([server]), "2606:4700::1111")).toEqual(["2606:4700::1111"]);
    expect(asked).toEqual([]);
  });

  test("without configured servers the machine's resolver is asked", async () => {
    const addresses = await texts(createResolver([]), "localhost");
    expect(addresses.every((address) => address === "127.0.0.1" || address === "::1")).toBe(true);
    expect(addresses.length).toBeLessThanOrEqual(MAX_ADDRESSES);
  });
});
