import type { Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { loadAddon } from "@openshell/boundary/local/native.ts";
import { Fixture, readResponse } from "@openshell/supervisor/egress/testing/fixture.ts";
import { afterEach, expect, test } from "vitest";
import { nativeParts } from "../../support/boundary.ts";

let fixture: Fixture;
const sockets: Socket[] = [];

afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy();
  await fixture[Symbol.asyncDispose]();
});

test("accepting that cannot go on for want of descriptors is tried again", async () => {
  const addon = loadAddon(nativeParts());
  let failures = 0;
  let listening = 0;
  fixture = await Fixture.create({
    deps: {
      limits: { flows: 1 },
      tools: {
        originalDestination: () => {
          throw new Error("not redirected");
        },
        // Both listeners once at the start; then no descriptor for a while.
        duplicate: (fd) => {
          listening += 1;
          if (listening > 2 && failures < 4) {
            failures += 1;
            throw Object.assign(new Error("dup"), { code: "EMFILE" });
          }
          return addon.duplicate(fd);
        },
      },
    },
  });
  await fixture.http("plain.example.com", (_, res) => res.end("ok"));
  expect(listening).toBe(2);
  const first = await fixture.proxy();
  const second = await fixture.proxy();
  sockets.push(first, second);
  await new Promise((resolve) => setTimeout(resolve, 30));
  first.destroy();
  second.write("GET http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\n\r\n");
  expect((await readResponse(second)).body).toBe("ok");
  // Taken while accepting was impossible, so it waits in the kernel until a descriptor is there again.
  const third = await fixture.proxy();
  sockets.push(third);
  second.destroy();
  third.write("GET http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\n\r\n");
  const answered = readResponse(third).then(({ body }) => body);
  expect(await Promise.race([answered, sleep(10_000, "no answer", { ref: false })])).toBe("ok");
  expect(failures).toBe(4);
});
