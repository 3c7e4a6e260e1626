import { create } from "@bufbuild/protobuf";
import { DurationSchema, TimestampSchema, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { describe, expect, it } from "vitest";
import { readDuration, readTimestamp, toDuration, toTimestamp } from "./times.ts";

const timestamp = (seconds: bigint, nanos = 0) => create(TimestampSchema, { seconds, nanos });
const duration = (seconds: bigint, nanos = 0) => create(DurationSchema, { seconds, nanos });

describe("readTimestamp", () => {
  it("keeps absence, the epoch and times before it apart", () => {
    expect(readTimestamp(undefined, "t")).toBeUndefined();
    expect(readTimestamp(timestamp(0n), "t")).toBe(0);
    expect(readTimestamp(timestamp(-1n, 500_000_000), "t")).toBe(-500);
  });

  it("accepts the first and last moment of the range and nothing beyond", () => {
    expect(readTimestamp(timestamp(-62_135_596_800n), "t")).toBe(Date.parse("0001-01-01T00:00:00Z"));
    expect(readTimestamp(timestamp(253_402_300_799n, 999_999_999), "t")).toBe(Date.UTC(9999, 11, 31, 23, 59, 59, 999));
    expect(() => readTimestamp(timestamp(-62_135_596_801n), "since_time")).toThrow("since_time");
    expect(() => readTimestamp(timestamp(253_402_300_800n), "t")).toThrow("t: ");
    expect(() => readTimestamp(timestamp(0n, -1), "t")).toThrow("nanos");
    expect(() => readTimestamp(timestamp(0n, 1_000_000_000), "t")).toThrow("nanos");
  });

  it("reads back what toTimestamp wrote", () => {
    for (const ms of [0, 1, -1, 1764440722123, -62135596800000, 999]) {
      expect(readTimestamp(toTimestamp(ms), "t")).toBe(ms);
      expect(toTimestamp(ms)).toEqual(timestampFromDate(new Date(ms)));
    }
  });
});

describe("readDuration", () => {
  it("rounds up, so that a tiny limit is not none", () => {
    expect(readDuration(duration(0n, 1), "d")).toBe(1);
    expect(readDuration(duration(1n, 500_000_000), "d")).toBe(1500);
    expect(readDuration(duration(0n), "d")).toBe(0);
    expect(readDuration(undefined, "d")).toBeUndefined();
  });

  it("refuses negative, mixed, out-of-range and too long durations", () => {
    expect(() => readDuration(duration(-1n), "d")).toThrow("negative");
    expect(() => readDuration(duration(0n, -1), "d")).toThrow("negative");
    expect(() => readDuration(duration(1n, -1), "d")).toThrow("sign");
    expect(() => readDuration(duration(315_576_000_001n), "d")).toThrow("10,000 years");
    expect(() => readDuration(duration(0n, 1_000_000_000), "d")).toThrow("nanos");
    expect(() => readDuration(duration(61n), "d", 60_000)).toThrow("at most 60 s");
    expect(readDuration(duration(60n), "d", 60_000)).toBe(60_000);
  });

  it("reads back what toDuration wrote", () => {
    for (const ms of [0, 1, 999, 1000, 1250, 86_400_000]) expect(readDuration(toDuration(ms), "d")).toBe(ms);
  });
});
