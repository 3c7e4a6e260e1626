import { userInfo } from "node:os";
import { expect, it } from "vitest";
import { homeFolder } from "./home.ts";

it("takes HOME only where it is absolute", () => {
  expect(homeFolder({ HOME: "/a b" })).toBe("/a b");
  for (const env of [{}, { HOME: "" }, { HOME: "relative" }]) expect(homeFolder(env)).toBe(userInfo().homedir);
});
