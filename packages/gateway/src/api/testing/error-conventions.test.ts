import { Code } from "@connectrpc/connect";
import { OpenShell } from "@openshell/api";
import {
  ApiError,
  invalidArgument,
  invalidField,
  notFound,
  unavailable,
  versionConflict,
} from "@openshell/api/errors.ts";
import { expect, test } from "vitest";
import { errorProblem } from "./error-conventions.ts";

const problem = (error: ApiError) => errorProblem(error, OpenShell.method.createSandbox);

test("errors of the right form are let through", () => {
  for (const error of [
    invalidField("spec.environment[A.B]", "must not be empty"),
    invalidField("spec.policy.network_policies.any.thing", "is wrong"),
    invalidField("workspace_scope.workspace", "must not be empty"),
    notFound("sandbox", "x"),
    unavailable("busy", { next: "Try again" }),
    versionConflict("sandbox", "x", 1n),
  ]) {
    expect(problem(error)).toBeUndefined();
  }
});

test("errors of a wrong form are found", () => {
  expect(problem(unavailable("busy"))).toMatch(/no next step/);
  expect(problem(new ApiError(Code.InvalidArgument, "wrong. Change it"))).toMatch(/no violation/);
  expect(problem(invalidArgument([]))).toMatch(/no violation/);
  expect(problem(invalidField("spec.imagination", "is wrong"))).toMatch(/is no field of CreateSandboxRequest/);
  expect(problem(invalidField("workspaceScope", "is wrong"))).toMatch(/is no field/);
  expect(problem(unavailable("failed\n    at run (x.ts:1)", { next: "Try again" }))).toMatch(/the inside of a program/);
});
