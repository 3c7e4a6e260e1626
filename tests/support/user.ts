import { execFileSync } from "node:child_process";
import { chmodSync, chownSync, existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** An unprivileged account made for one run. */
export interface TestUser extends Disposable {
  readonly name: string;
  readonly uid: number;
  readonly gid: number;
  readonly home: string;
}

/** Above what distributions give to people (1000–29999) and below subordinate ids (100000 on). */
const FIRST_UID = 30_000;
const LAST_UID = 39_999;

/** useradd itself waits for the lock of the account database, some seconds each time. */
const ACCOUNT_ATTEMPTS = 5;

/** The first uid from `FIRST_UID` that is no one's and has no process. */
function freeUid(): number {
  const taken = new Set<number>();
  for (const database of ["passwd", "group"]) {
    for (const line of execFileSync("getent", [database], { encoding: "utf8" }).split("\n")) {
      taken.add(Number(line.split(":")[2]));
    }
  }
  for (const line of execFileSync("ps", ["-eo", "uid="], { encoding: "utf8" }).split("\n")) taken.add(Number(line));
  for (let uid = FIRST_UID; uid <= LAST_UID; uid++) if (!taken.has(uid)) return uid;
  throw new Error(`no free uid between ${FIRST_UID} and ${LAST_UID}`);
}

/**
 * Makes an account with an entry in passwd (real users have one, and `os.userInfo()` needs it), a group of its own, a
 * private home and no subordinate ids.
 * Needs root and useradd. Disposal removes the account and the home.
 */
export function createTestUser(): TestUser {
  const home = mkdtempSync(join(tmpdir(), "openshell-user-"));
  // --system leaves out subordinate ids, mail and ageing; the home folder is made here, with the right mode.
  const options = ["--system", "--user-group", "--no-create-home", "--shell", "/bin/sh", "--home-dir", home];
  let uid = 0;
  let name = "";
  for (let attempt = 1; name === ""; attempt++) {
    uid = freeUid();
    try {
      execFileSync("useradd", [...options, "--uid", String(uid), `openshell-t${uid}`], { stdio: "pipe" });
      name = `openshell-t${uid}`;
    } catch (cause) {
      // Another run may have taken the uid, or hold the lock of the database, since it was found free.
      if (attempt < ACCOUNT_ATTEMPTS) continue;
      rmSync(home, { recursive: true, force: true });
      throw new Error("could not create the unprivileged test user with useradd", { cause });
    }
  }
  const gid = Number(execFileSync("id", ["-g", name], { encoding: "utf8" }));
  chmodSync(home, 0o700);
  chownSync(home, uid, gid);
  return {
    name,
    uid,
    gid,
    home,
    [Symbol.dispose]() {
      if (existsSync(home)) rmSync(home, { recursive: true, force: true });
      execFileSync("userdel", [name], { stdio: ["ignore", "ignore", "pipe"] });
    },
  };
}

/** The variables of a fresh login of that user. */
export function loginEnvironment(user: TestUser): Readonly<Record<string, string>> {
  return { HOME: user.home, USER: user.name, LOGNAME: user.name, SHELL: "/bin/sh" };
}
