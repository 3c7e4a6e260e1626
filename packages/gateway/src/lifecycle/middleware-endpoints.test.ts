import { describe, expect, it } from "vitest";
import { MiddlewareEndpoints } from "./middleware-endpoints.ts";

describe("endpoints of middleware services, for what sandboxes never reach", () => {
  it("are addresses as they are, and names with every address that they have", async () => {
    const services = [
      "http://10.0.0.9:81",
      "https://[2001:db8::1]",
      "https://guard.example:8443",
      "https://away.example",
    ];
    let addresses = ["10.0.0.1", "2001:db8::2"];
    using endpoints = await MiddlewareEndpoints.open(
      services.map((endpoint) => ({ endpoint })),
      async (name) => {
        if (name === "away.example") throw new Error("ENOTFOUND");
        return addresses;
      },
    );
    const always = ["10.0.0.9:81", "[2001:db8::1]:443", "guard.example:8443"];
    expect(endpoints.denied).toEqual([...always, "10.0.0.1:8443", "[2001:db8::2]:8443", "away.example:443"]);
    addresses = ["10.0.0.2"];
    await endpoints.refresh();
    expect(endpoints.denied).toEqual([...always, "10.0.0.2:8443", "away.example:443"]);
  });

  it("ask nobody when they are addresses", async () => {
    using endpoints = await MiddlewareEndpoints.open([{ endpoint: "http://10.0.0.9:81" }], () => {
      throw new Error("asked");
    });
    expect(endpoints.denied).toEqual(["10.0.0.9:81"]);
  });
});
