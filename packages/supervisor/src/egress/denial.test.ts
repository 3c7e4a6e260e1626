import { expect, it } from "vitest";
import { formatError } from "./denial.ts";

it("a refusal ends with a newline, which is counted, so that a shell's prompt does not follow the body", () => {
  const [head = "", body = ""] = formatError(403, { error: "policy_denied", detail: "no" })
    .toString()
    .split("\r\n\r\n");
  expect(body).toMatch(/^\{.*\}\n$/);
  expect(head).toContain(`Content-Length: ${body.length}`);
});
