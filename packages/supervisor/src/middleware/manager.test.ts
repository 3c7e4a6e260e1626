import { create, type JsonObject } from "@bufbuild/protobuf";
import { SandboxPolicySchema } from "@openshell/api";
import type { MiddlewareService } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { beforeEach, describe, expect, it, vi } from "vitest";
import { NO_MIDDLEWARE } from "./registry.ts";
import { registered, Services } from "./testing/services.ts";

/** A configuration whose policy names these middlewares, with what is registered. */
function delivery(named: Readonly<Record<string, JsonObject>>, middleware: MiddlewareService[]) {
  const entries = Object.entries(named).map(([name, config], order) => [name, { middleware: name, config, order }]);
  return { policy: create(SandboxPolicySchema, { networkMiddlewares: Object.fromEntries(entries) }), middleware };
}

describe("middleware services of one sandbox", () => {
  let services: Services;
  beforeEach(() => {
    services = new Services();
    services.up.add("a@1").add("b@1");
  });
  const { prepare, load } = {
    prepare: (...args: Parameters<typeof delivery>) => services.manager.prepare(delivery(...args)),
    load: async (...args: Parameters<typeof delivery>) => {
      const { registry, problem } = await services.manager.prepare(delivery(...args));
      await services.manager.commit(registry);
      return { registry, problem };
    },
  };

  it("needs nothing for built-in ones, nor for a policy without any", async () => {
    expect(await prepare({}, [])).toEqual({ registry: NO_MIDDLEWARE, problem: undefined });
    expect((await prepare({ "openshell/regex": { mode: "redact" } }, [])).registry).toBe(NO_MIDDLEWARE);
    const limits = vi.spyOn(AbortSignal, "timeout");
    await prepare({}, []);
    expect(limits, "a timer that outlives the change").not.toHaveBeenCalled();
    await prepare({ a: {} }, [registered("a")]);
    expect(limits).toHaveBeenCalledOnce();
    limits.mockRestore();
  });

  it("connects to what the policy names and to nothing else", async () => {
    const { registry, problem } = await load({ a: {} }, [registered("a"), registered("b")]);
    expect(problem).toBeUndefined();
    expect([...registry.services.keys()]).toEqual(["a"]);
    expect(services.open).toEqual(["a@1"]);
  });

  it("does not reconnect for a change of the policy alone; new settings are asked about once", async () => {
    const first = await load({ a: { x: 1 } }, [registered("a")]);
    const second = await load({ a: { x: 1 } }, [registered("a")]);
    expect(second.registry).toBe(first.registry);
    const third = await load({ a: { x: 2 } }, [registered("a")]);
    expect(third.registry).toBe(first.registry);
    expect(services.connections).toHaveLength(1);
    expect(services.connections[0]!.asked).toEqual([{ x: 1 }, { x: 2 }]);
  });

  it("closes what is no longer named, and only once its successor is in force", async () => {
    await load({ a: {} }, [registered("a")]);
    const next = await prepare({ b: {} }, [registered("b")]);
    expect(services.open).toEqual(["a@1", "b@1"]);
    await services.manager.commit(next.registry);
    expect(services.open).toEqual(["b@1"]);
  });

  it("keeps the former connection when the new registration does not answer, and takes the new one when it does", async () => {
    const before = await load({ a: {} }, [registered("a", 1)]);
    const failed = await load({ a: {} }, [registered("a", 2)]);
    expect(failed.problem).toMatchObject({ code: "middleware_unreachable" });
    expect(failed.registry.services.get("a")).toBe(before.registry.services.get("a"));
    expect(services.open).toEqual(["a@1"]);
    // Tried again with the same end: the same registry, so that nothing is published for it.
    expect((await load({ a: {} }, [registered("a", 2)])).registry).toBe(failed.registry);
    services.up.add("a@2");
    expect((await load({ a: {} }, [registered("a", 2)])).problem).toBeUndefined();
    expect(services.open).toEqual(["a@2"]);
  });

  it("goes on without a service that never answered, and with the others", async () => {
    await load({ a: {} }, [registered("a")]);
    const { registry, problem } = await load({ a: {}, b: {}, c: {} }, [
      registered("a"),
      registered("b"),
      registered("c"),
    ]);
    expect([...registry.services.keys()]).toEqual(["a", "b"]);
    expect([...registry.missing.keys()]).toEqual(["c"]);
    expect(problem?.message).toContain("'c'");
  });

  it("drops a service that is registered no more, or that refuses its settings", async () => {
    await load({ a: {}, b: {} }, [registered("a"), registered("b")]);
    expect((await load({ a: {}, b: {} }, [registered("b")])).problem).toMatchObject({
      code: "middleware_unregistered",
    });
    expect(services.open).toEqual(["b@1"]);
    services.refused = { x: 1 };
    const { registry, problem } = await load({ b: { x: 1 } }, [registered("b")]);
    expect(problem).toMatchObject({ code: "middleware_config_refused" });
    expect(registry.services.size).toBe(0);
  });

  it("names every service that is missing", async () => {
    const { problem } = await prepare({ c: {}, d: {}, e: {} }, [registered("c"), registered("d")]);
    expect(problem?.message).toContain("; and 2 more: d, e");
  });

  it("tells when everything that a refused start needs is there, with the connections open", async () => {
    const wanted = delivery({ a: {}, c: {} }, [registered("a"), registered("c")]);
    expect((await services.manager.prepare(wanted)).problem).toBeDefined();
    const recovered = services.manager.recovered(wanted);
    services.up.add("c@1");
    await recovered;
    expect((await services.manager.prepare(wanted)).problem).toBeUndefined();
    expect(services.connections).toHaveLength(2);
  });

  it("stops looking for what another configuration does not need", async () => {
    const refused = delivery({ c: {} }, [registered("c")]);
    await services.manager.prepare(refused);
    let told = false;
    void services.manager.recovered(refused).then(() => {
      told = true;
    });
    await load({ a: {} }, [registered("a")]);
    services.up.add("c@1");
    await load({ a: {} }, [registered("a")]);
    expect(told).toBe(false);
    expect(services.open).toEqual(["a@1"]);
  });

  it("closes everything at its end", async () => {
    await load({ a: {}, b: {} }, [registered("a"), registered("b")]);
    await services.manager[Symbol.asyncDispose]();
    expect(services.open).toEqual([]);
  });

  it("goes on after a connection that did not end in order", async () => {
    services.brokenEnd = true;
    await load({ a: {} }, [registered("a")]);
    const next = await load({ b: {} }, [registered("b")]);
    expect([...next.registry.services.keys()]).toEqual(["b"]);
    await prepare({ a: {} }, [registered("a")]);
    expect((await prepare({ b: {} }, [registered("b")])).problem).toBeUndefined();
    expect([...(await prepare({ a: {} }, [registered("a")])).registry.services.keys()]).toEqual(["a"]);
    await services.manager[Symbol.asyncDispose]();
    expect(services.open).toEqual([]);
  });

  it("prepares the next registry after one that could not be made", async () => {
    const broken = { middleware: undefined as never, policy: delivery({ a: {} }, []).policy };
    await expect(services.manager.prepare(broken)).rejects.toThrow();
    expect([...(await prepare({ a: {} }, [registered("a")])).registry.services.keys()]).toEqual(["a"]);
  });
});
