import { expect, it } from "vitest";
import { imageEnvironment } from "./environment.ts";

it("puts the sandbox's own over the image's, but for the language, and joins the search paths", () => {
  const own = { HOME: "/sandbox", HTTPS_PROXY: "http://127.0.0.1:3128", LANG: "C.UTF-8", PATH: "/usr/bin:/bin" };
  const declared = [
    "PATH=/opt/bin:/usr/bin:relative",
    "LANG=de_DE.UTF-8",
    "HOME=/root",
    "HTTPS_PROXY=http://evil",
    "A=1=2",
  ];
  expect(imageEnvironment(declared, own)).toEqual({
    ...own,
    LANG: "de_DE.UTF-8",
    A: "1=2",
    PATH: "/opt/bin:/usr/bin:/bin",
  });
});

it("leaves out what is no variable", () => {
  const declared = ["", "=x", "1A=x", "A-B=x", "OPENSHELL_X=x", "B=a\nb", `C=${"x".repeat(9_000)}`, "D"];
  expect(imageEnvironment(declared, { PATH: "/bin" })).toEqual({ PATH: "/bin" });
});
