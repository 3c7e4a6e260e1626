import { ServiceStatus } from "@openshell/api";
import { expect, it } from "vitest";
import { STATUS_FRESH_MS, serviceStatus } from "./service-status.ts";

it("looks at the store no more often than a good status holds, and each time while it is bad", async () => {
  let now = 1000;
  let works = true;
  let checks = 0;
  const check = async (): Promise<void> => {
    checks += 1;
    if (!works) throw new Error("the disk is gone");
  };
  const status = serviceStatus(check, { monotonic: () => now });
  expect([await status(), await status(), checks]).toEqual([ServiceStatus.HEALTHY, ServiceStatus.HEALTHY, 1]);
  works = false;
  now += STATUS_FRESH_MS - 1;
  expect(await status()).toBe(ServiceStatus.HEALTHY);
  now += 1;
  expect([await status(), await status(), checks]).toEqual([ServiceStatus.UNHEALTHY, ServiceStatus.UNHEALTHY, 3]);
  works = true;
  expect(await status()).toBe(ServiceStatus.HEALTHY);
});
