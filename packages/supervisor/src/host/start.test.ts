import { describe, expect, it } from "vitest";
import { parseHostStart } from "./start.ts";

const good = {
  secret: "a".repeat(64),
  hostId: "h",
  gatewaySocket: "/g",
  controlSocket: "/c",
  logFile: "/l",
  lockFile: "/k",
  build: "b",
};

describe("host start line", () => {
  it("is read whole", () => {
    expect(parseHostStart(JSON.stringify(good))).toEqual(good);
  });
  it.each(Object.keys(good))("without %s is refused, and the secret is not in the error", (field) => {
    const { [field as keyof typeof good]: _, ...rest } = good;
    expect(() => parseHostStart(JSON.stringify(rest))).toThrow(field);
    try {
      parseHostStart(JSON.stringify(rest));
    } catch (error) {
      expect(String(error)).not.toContain(good.secret);
    }
  });
  it("with a malformed secret or no JSON is refused without showing it", () => {
    expect(() => parseHostStart(JSON.stringify({ ...good, secret: "hunter2" }))).toThrow(/malformed secret/);
    expect(() => parseHostStart("hunter2")).not.toThrow(/hunter2/);
  });
});
