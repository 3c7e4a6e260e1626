import type { Migration } from "../migrate.ts";

/** Each change of a policy ends the revisions before it: to find them among thousands must not take longer than among few. */
export const currentPolicies: Migration = {
  version: 3,
  name: "current-policies",
  statements(db) {
    return [
      db.schema
        .createIndex("policy_revisions_status")
        .on("policy_revisions")
        .columns(["scope", "status", "version"])
        .compile(),
    ];
  },
};
