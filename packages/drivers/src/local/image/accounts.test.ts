import { describe, expect, it } from "vitest";
import { groupFor, imageUser, passwdFor } from "./accounts.ts";

const PASSWD =
  "root:x:0:0:root:/root:/bin/sh\nnode:$6$hash:1000:1001:Node:/home/node:/bin/bash\napp:x:1234:1234::/app:\n";
const GROUP = "root:x:0:\nstaff:x:50:node\n";

describe("imageUser", () => {
  it.each([
    ["", undefined],
    ["root", undefined],
    ["0", undefined],
    ["0:50", undefined],
    ["nobody-there", undefined],
    ["app:root", undefined],
    ["-1", undefined],
    ["4294967295", undefined],
    ["node", { uid: 1000, gid: 1001 }],
    ["1000", { uid: 1000, gid: 1001 }],
    ["2000", { uid: 2000, gid: 2000 }],
    ["node:staff", { uid: 1000, gid: 50 }],
    ["2000:60", { uid: 2000, gid: 60 }],
  ])("%j is %j", (declared, user) => expect(imageUser(declared, PASSWD, GROUP)).toEqual(user));

  it("is nobody without account files, but by number", () => {
    expect(imageUser("node", undefined, undefined)).toBeUndefined();
    expect(imageUser("5:6", undefined, undefined)).toEqual({ uid: 5, gid: 6 });
  });
});

describe("passwdFor", () => {
  it("names the agent as the image does, at home in its own home, and shows no password", () => {
    expect(passwdFor(PASSWD, { uid: 1000, gid: 1001, shell: "/bin/bash" })).toEqual({
      user: "node",
      text: "root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1001:Node:/sandbox:/bin/bash\napp:x:1234:1234::/app:\n",
    });
  });

  it("adds the agent where the image has no account for it, under a free name", () => {
    const agent = { uid: 5, gid: 6, shell: "/bin/sh" };
    expect(passwdFor(undefined, agent)).toEqual({
      user: "sandbox",
      text: "root:x:0:0:root:/root:/sbin/nologin\nsandbox:x:5:6::/sandbox:/bin/sh\n",
    });
    expect(passwdFor("sandbox:x:7:7::/:/bin/sh\n", agent).user).toBe("sandbox-agent");
  });

  it("keeps well-formed lines only", () => {
    const { text } = passwdFor("root:$6$secret:19000:0:99999:7:::\nshort:x:1\nbad:x:no:0:::\nx:x:1:1:a\u0007b::\n", {
      uid: 5,
      gid: 6,
      shell: "/bin/sh",
    });
    expect(text.split("\n").map((line) => line.split(":")[0])).toEqual(["root", "sandbox", ""]);
  });
});

describe("groupFor", () => {
  it("adds the agent's group unless it is there", () => {
    expect(groupFor(GROUP, 50)).toBe(GROUP);
    expect(groupFor(GROUP, 7)).toBe(`${GROUP}sandbox:x:7:\n`);
  });
});
