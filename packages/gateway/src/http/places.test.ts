import { Code } from "@connectrpc/connect";
import { expect, it } from "vitest";
import { Places } from "./places.ts";

it("leaves places to those who said who they are, and gives back what is disposed of", () => {
  const places = new Places({ all: 3, strangers: 1, what: "calls", next: "Wait" });
  const refused = (stranger: boolean) => {
    try {
      places.take(stranger)[Symbol.dispose]();
      return "taken";
    } catch (error) {
      return Code[(error as { code: Code }).code];
    }
  };
  const stranger = places.take(true);
  expect([refused(true), refused(false)]).toEqual(["ResourceExhausted", "taken"]);
  const known = [places.take(false), places.take(false)];
  expect([refused(true), refused(false)]).toEqual(["ResourceExhausted", "ResourceExhausted"]);
  known[0]![Symbol.dispose]();
  expect([refused(true), refused(false)]).toEqual(["ResourceExhausted", "taken"]);
  stranger[Symbol.dispose]();
  expect([refused(true), refused(false)]).toEqual(["taken", "taken"]);
});
