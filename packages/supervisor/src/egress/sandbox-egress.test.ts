import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { Fixture, readAll, request } from "./testing/fixture.ts";

let fixture: Fixture;

beforeEach(async () => {
  fixture = await Fixture.create();
});

afterEach(async () => {
  await fixture[Symbol.asyncDispose]();
});

describe("explicit proxy", () => {
  test("an allowed GET through CONNECT and inspection reaches the origin, twice on one connection", async () => {
    const seen: string[] = [];
    await fixture.https("api.example.com", (req, res) => {
      seen.push(`${req.method} ${req.url} ${req.headers.host}`);
      res.setHeader("X-Origin", "yes");
      res.end(`hello ${req.url}`);
    });
    const tls = await fixture.tls(await fixture.tunnel("api.example.com:443"), "api.example.com");
    const first = await request(tls, "GET /one HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    expect(first).toMatchObject({ status: 200, body: "hello /one" });
    expect(first.head).toContain("X-Origin: yes");
    const second = await request(tls, "GET /two HTTP/1.1\r\nHost: API.example.com:443\r\n\r\n");
    expect(second).toMatchObject({ status: 200, body: "hello /two" });
    expect(seen).toEqual(["GET /one api.example.com", "GET /two api.example.com"]);
    expect(fixture.dialled).toEqual(["93.184.216.34:443"]);
    expect(fixture.events.connections.map((event) => [event.outcome, event.host, event.policy])).toEqual([
      ["allowed", "api.example.com", "api"],
    ]);
    expect(fixture.events.requests.map((event) => [event.outcome, event.method, event.path, event.status])).toEqual([
      ["allowed", "GET", "/one", 200],
      ["allowed", "GET", "/two", 200],
    ]);
    tls.destroy();
  });

  test("a host that no rule names is refused with the reason and the next step", async () => {
    const socket = await fixture.proxy();
    socket.write("CONNECT evil.example.com:443 HTTP/1.1\r\nHost: evil.example.com:443\r\n\r\n");
    const answer = await readAll(socket);
    expect(answer).toMatch(/^HTTP\/1\.1 403 Forbidden\r\n/);
    const body = JSON.parse(answer.slice(answer.indexOf("\r\n\r\n") + 4));
    expect(body).toMatchObject({
      error: "policy_denied",
      detail: "CONNECT evil.example.com:443 not permitted by policy",
      reason: "endpoint evil.example.com:443 is not allowed by any policy",
    });
    expect(body.next).toContain("evil.example.com");
    expect(fixture.dialled).toEqual([]);
  });
});
