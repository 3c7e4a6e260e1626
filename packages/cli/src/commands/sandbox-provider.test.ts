import { afterEach, beforeEach, expect, test } from "vitest";
import { FakeGateway } from "../testing/fake-gateway.ts";
import { runCommandLine } from "../testing/surroundings.ts";

let gateway: FakeGateway;
beforeEach(async () => {
  gateway = await FakeGateway.start();
});
afterEach(() => gateway[Symbol.asyncDispose]());

const run = (...argv: string[]) => runCommandLine(["sandbox", "provider", ...argv], { env: gateway.env });
const receipt = {
  receiptId: "r1",
  mutationId: "m1",
  provider: "model",
  desired: { sandbox: "dev", configRevision: "18446744073709551615" },
};
const status = (state: string, reason = "UNSPECIFIED") => ({
  message: {
    status: {
      receipt,
      state: `PROVIDER_READINESS_STATE_${state}`,
      reason: `PROVIDER_READINESS_REASON_${reason}`,
      operation: { operationId: "r1", state: "CONFIG_UPDATE_OPERATION_STATE_PENDING" },
    },
  },
});
const states = (...answers: ReturnType<typeof status>[]): void => {
  gateway.answers.set("GetSandboxProviderStatus", answers.at(-1)!);
};

test("attach and detach say what was stored, and no more", async () => {
  gateway.answers.set("AttachSandboxProvider", { message: { attached: true, receipt } });
  expect(await run("attach", "dev", "model")).toEqual({
    code: 0,
    stdout: "",
    stderr: "✓ Provider model is attached to sandbox dev.\n",
  });
  expect(gateway.calls.map(({ method }) => method)).toEqual(["AttachSandboxProvider"]);
  gateway.answers.set("AttachSandboxProvider", { message: { receipt } });
  expect((await run("attach", "dev", "model")).stderr).toBe("· Provider model was attached already to sandbox dev.\n");
  gateway.answers.set("DetachSandboxProvider", { message: { detached: true, receipt } });
  expect((await run("detach", "dev", "model")).stderr).toBe("✓ Provider model is detached from sandbox dev.\n");
});

test("--wait ends with what is in force, what cannot be, or the limit; only the first is success", async () => {
  gateway.answers.set("AttachSandboxProvider", { message: { attached: true, receipt } });
  states(status("READY"));
  const ready = await run("attach", "dev", "model", "--wait");
  expect(ready).toMatchObject({
    code: 0,
    stderr: expect.stringContaining("Provider model of sandbox dev is in force."),
  });
  expect(gateway.calls.at(-1)?.message).toMatchObject({ sandbox: "dev", provider: "model", receiptId: "r1" });

  states(status("WITHHELD", "CREDENTIAL_EXPIRED"));
  const expired = await run("attach", "dev", "model", "--wait");
  expect(expired).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("next: openshell provider update model with"),
  });

  states(status("FAILED", "CREDENTIAL_INSTALL_FAILED"));
  const failed = await run("attach", "dev", "model", "--wait");
  expect(failed).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("not in force: failed (credential install failed).\n  next: "),
  });

  states(status("PENDING", "WAITING_FOR_SUPERVISOR"));
  const late = await run("attach", "dev", "model", "--wait", "--timeout", "1");
  expect(late).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("not in force within 1 s: pending (waiting for supervisor)"),
  });
});

test("status: text, JSON with names as in the protocol and large numbers as text, and waiting", async () => {
  states(status("PENDING", "WAITING_FOR_POLICY"));
  expect(await run("status", "dev", "model")).toMatchObject({
    code: 0,
    stderr: "· Provider model of sandbox dev: pending (waiting for policy)\n",
  });
  expect(gateway.calls.at(-1)?.message).not.toHaveProperty("receiptId");
  const { code, stdout } = await run("status", "dev", "model", "--receipt", "r1", "-o", "json");
  expect(code).toBe(0);
  expect(JSON.parse(stdout)).toEqual({
    mutation_id: "",
    targets: [
      {
        receipt: {
          receipt_id: "r1",
          mutation_id: "m1",
          provider: "model",
          desired: { sandbox: "dev", config_revision: "18446744073709551615" },
        },
        state: "PROVIDER_READINESS_STATE_PENDING",
        reason: "PROVIDER_READINESS_REASON_WAITING_FOR_POLICY",
        operation: { operation_id: "r1", state: "CONFIG_UPDATE_OPERATION_STATE_PENDING" },
        wait_outcome: "not_requested",
      },
    ],
  });
  states(status("REVOKED"));
  expect((await run("status", "dev", "model", "--wait")).stderr).toContain("is detached and no longer resolves");
});

test("list shows keys and never values", async () => {
  const provider = {
    metadata: { name: "model" },
    type: "generic",
    credentials: { B: "REDACTED", A: "REDACTED" },
    config: { URL: "u" },
  };
  gateway.answers.set("ListSandboxProviders", { message: { providers: [provider] } });
  expect((await run("list", "dev")).stdout).toBe(
    "NAME   TYPE     CREDENTIAL_KEYS  CONFIG_KEYS\nmodel  generic  A, B             URL\n",
  );
  expect(JSON.parse((await run("list", "dev", "-o", "json")).stdout)).toEqual({
    providers: [{ name: "model", type: "generic", credential_keys: ["A", "B"], config_keys: ["URL"] }],
    next_page_token: "",
  });
});

test("the words are found, helped with and corrected like those of any group", async () => {
  const help = await run("--help");
  expect(help).toMatchObject({ code: 0, stdout: expect.stringContaining("openshell sandbox provider COMMAND") });
  expect(help.stdout).toMatch(/attach +give a sandbox a provider/);
  expect(await run("atach", "dev", "model")).toMatchObject({
    code: 2,
    stderr: expect.stringContaining("Did you mean openshell sandbox provider attach?"),
  });
  expect(await run("attach", "dev")).toMatchObject({
    code: 2,
    stderr: expect.stringContaining("name of the provider"),
  });
  const words = (...typed: string[]) =>
    runCommandLine(["__complete", "bash", "sandbox", ...typed], { env: gateway.env });
  expect((await words("prov")).stdout).toBe("provider\n");
  expect((await words("provider", "")).stdout).toBe("list\nattach\ndetach\nstatus\n");
});

test("--wait does not wait for a sandbox that does not run", async () => {
  gateway.answers.set("AttachSandboxProvider", { message: { attached: true, receipt } });
  gateway.answers.set("GetSandbox", { message: { sandbox: { status: { phase: "SANDBOX_PHASE_STOPPED" } } } });
  states(status("PENDING", "WAITING_FOR_SUPERVISOR"));
  const stopped = await run("attach", "dev", "model", "--wait", "--timeout", "60");
  expect(stopped).toMatchObject({
    code: 1,
    stderr: expect.stringContaining(
      "the change is stored and takes effect at the next start: the sandbox is stopped.\n  next: openshell sandbox start dev\n",
    ),
  });
  expect(gateway.calls.filter(({ method }) => method === "GetSandboxProviderStatus")).toHaveLength(1);
});

test("provider update: every sandbox that takes the change up, for people and for programs", async () => {
  const second = { ...receipt, receiptId: "r2", desired: { sandbox: "other" } };
  const provider = { metadata: { name: "model" } };
  gateway.answers.set("UpdateProvider", { message: { provider, mutationId: "m1", targetReceipts: [receipt, second] } });
  const update = (...argv: string[]) =>
    runCommandLine(["provider", "update", "model", "--config", "A=b", ...argv], { env: gateway.env });
  expect(await update()).toEqual({
    code: 0,
    stdout: "",
    stderr: "✓ Updated provider model; 2 sandboxes take it up.\n",
  });
  states(status("READY"));
  expect((await update("--wait")).stderr).toMatch(/sandbox dev is in force[\s\S]*sandbox other is in force/);
  const structured = await update("--wait", "-o", "json");
  expect(JSON.parse(structured.stdout)).toMatchObject({
    mutation_id: "m1",
    targets: [{ wait_outcome: "complete" }, { wait_outcome: "complete" }],
  });
  states(status("PENDING", "WAITING_FOR_SUPERVISOR"));
  expect(await update("--wait", "--timeout", "1", "-o", "json")).toMatchObject({ code: 1 });
});
