import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { decodeStatusMessage, encodeStatusMessage, readStatus, StatusCode } from "./status.ts";
import { formatTimeout, parseTimeout } from "./timeout.ts";

describe("grpc-message", () => {
  it("survives its encoding, whatever the text", () => {
    fc.assert(
      fc.property(fc.string({ unit: "binary" }), (text) => {
        const encoded = encodeStatusMessage(text.toWellFormed());
        expect(encoded).toMatch(/^[\x20-\x7e]*$/);
        expect(decodeStatusMessage(encoded)).toBe(text.toWellFormed());
      }),
    );
  });

  it("encodes no more than it must", () => {
    expect(encodeStatusMessage(" both ends ")).toBe("%20both ends%20");
    expect(encodeStatusMessage("two words, ü, 100%\n")).toBe("two words, %C3%BC, 100%25%0A");
  });

  it("keeps what is no valid escape", () => {
    expect(decodeStatusMessage("50% off %zz %41")).toBe("50% off %zz A");
  });
});

describe("grpc-status", () => {
  it("is OK, or an error with message, details and every field", () => {
    expect(readStatus({ "grpc-status": "0" })).toBeUndefined();
    const fields = { "grpc-status": "5", "grpc-message": "no%0Asuch", "grpc-status-details-bin": "AQI" };
    expect(readStatus(fields, { "x-a": "1" })).toMatchObject({
      code: StatusCode.notFound,
      message: "no\nsuch",
      details: Buffer.from([1, 2]),
      trailer: { ...fields, "x-a": "1" },
    });
  });

  it.each([undefined, "", "17", "-1", "x", "0x1", "007"])("of %j is an error of the server", (status) => {
    expect(() => readStatus({ "grpc-status": status })).toThrow(/grpc-status/);
  });
});

describe("grpc-timeout", () => {
  it.each([
    ["1H", 3_600_000],
    ["2M", 120_000],
    ["3S", 3_000],
    ["40m", 40],
    ["5000u", 5],
    ["6000000n", 6],
    ["0m", 0],
    ["99999999H", 99_999_999 * 3_600_000],
  ])("%s is read", (text, ms) => {
    expect(parseTimeout(text)).toBeCloseTo(ms);
  });

  it.each(["", "m", "1", "-1m", "1.5S", "123456789m", "1s", " 1m", "1m ", "1mm"])("%j is refused", (text) => {
    expect(() => parseTimeout(text)).toThrow(expect.objectContaining({ code: StatusCode.invalidArgument }));
  });

  it("is written with at most 8 digits and never shorter than meant", () => {
    fc.assert(
      fc.property(fc.double({ min: 0, max: 1e13, noNaN: true }), (ms) => {
        const text = formatTimeout(ms);
        expect(text).toMatch(/^\d{1,8}[mSH]$/);
        expect(parseTimeout(text)).toBeGreaterThanOrEqual(Math.min(ms, 99_999_999 * 1000));
      }),
    );
  });
});
