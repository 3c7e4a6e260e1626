import { expect, test } from "vitest";
import { parseDenial } from "./denials.ts";

test("a refused connection is read from its line", () => {
  const line =
    "NET:REFUSE [MED] DENIED /usr/bin/curl(5) -> example.com:443 [policy:- engine:opa] " +
    "[reason:network connections not allowed by policy] " +
    '[code:policy_denied next:Add\\u{20}a:\\u{20}\\u{5b}{host:\\u{20}"example.com"}\\u{5d} origin:explicit generation:1]';
  expect(parseDenial(line)).toEqual({
    what: "/usr/bin/curl(5) -> example.com:443",
    reason: "network connections not allowed by policy",
    next: 'Add a: [{host: "example.com"}]',
  });
});

test("a refused request, and a refusal without a next step", () => {
  const line =
    "HTTP:GET [MED] DENIED GET https://api.example.com/x [policy:model engine:opa] [reason:no rule [x] matches]";
  expect(parseDenial(line)).toEqual({ what: "GET https://api.example.com/x", reason: "no rule [x] matches", next: "" });
});

test("other lines are none", () => {
  expect(
    parseDenial("NET:OPEN [INFO] ALLOWED /usr/bin/curl(5) -> example.com:443 [policy:a engine:opa]"),
  ).toBeUndefined();
  expect(parseDenial("the agent printed DENIED x [policy:")).toBeUndefined();
});
