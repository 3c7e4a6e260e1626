import { describe, expect, it } from "vitest";
import { suspicion } from "./browser-guard.ts";

const check = (headers: Record<string, string>) => suspicion({ headers });

describe("the guard of an unauthenticated listener", () => {
  it.each([
    { host: "127.0.0.1:17670" },
    { host: "localhost" },
    { host: "box.openshell.localhost:1" },
    { ":authority": "[::1]:17670" },
    { host: "LOCALHOST:1", "sec-fetch-site": "same-origin", origin: "http://localhost:1" },
    { host: "127.0.0.1", "sec-fetch-site": "none" },
  ] as Record<string, string>[])("lets programs of this machine through: %o", (headers) => {
    expect(check(headers)).toBeUndefined();
  });

  it.each([
    {},
    { host: "evil.example:17670" },
    { host: "127.0.0.1.evil.example" },
    { host: "localhost.evil.example" },
    { host: "10.0.0.1:17670" },
    { host: "127.0.0.1", ":authority": "evil.example" },
    { host: "127.0.0.1", origin: "https://evil.example" },
    { host: "127.0.0.1", origin: "null" },
    { host: "127.0.0.1", "sec-fetch-site": "cross-site" },
    { host: "127.0.0.1", "sec-fetch-site": "same-site" },
  ] as Record<string, string>[])("refuses what a web page sends: %o", (headers) => {
    expect(check(headers)).toBeDefined();
  });
});
