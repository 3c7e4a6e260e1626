import { defineConfig } from "vitest/config";

/** Unit tests sit beside the code and run in parallel; tests that touch the kernel live under tests/ and run one file at a time. */
export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: "unit",
          include: ["packages/*/src/**/*.test.ts", "tools/**/*.test.ts", "bench/**/*.test.ts"],
          testTimeout: 10_000,
        },
      },
      {
        test: { name: "launcher", include: ["tests/functional/launcher/**/*.test.ts"], testTimeout: 180_000 },
      },
      {
        test: {
          name: "system",
          include: ["tests/**/*.test.ts"],
          // It installs packages, which the test network keeps it from.
          exclude: ["tests/functional/launcher/**"],
          fileParallelism: false,
          testTimeout: 60_000,
          hookTimeout: 120_000,
        },
      },
    ],
  },
});
