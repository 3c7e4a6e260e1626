import { defineConfig } from "vitest/config";

/** Unit tests sit beside the code and run in parallel; tests that touch the kernel live under tests/ and run one file at a time. */
export default defineConfig({
  test: {
    // By default one core is left to vitest itself, which hardly needs it: with two, that is half of the machine.
    maxWorkers: "100%",
    projects: [
      {
        test: {
          name: "unit",
          include: [
            "packages/*/src/**/*.test.ts",
            "tools/**/*.test.ts",
            "bench/**/*.test.ts",
            // The table against the sources; its own program runs what is in it.
            "tests/known-faults/**/*.test.ts",
          ],
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
          // The first installs packages, which the test network keeps it from; the second is a unit test.
          exclude: ["tests/functional/launcher/**", "tests/known-faults/**"],
          fileParallelism: false,
          testTimeout: 60_000,
          hookTimeout: 120_000,
        },
      },
    ],
  },
});
