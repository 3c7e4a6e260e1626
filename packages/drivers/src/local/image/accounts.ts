import { MAXIMUM_ID } from "../identity.ts";
import { AGENT_USER, HOME } from "../root-view.ts";

/** Characters of one line of an account file. */
const MAX_LINE = 8_192;

/** An image's user by number. */
export interface ImageUser {
  readonly uid: number;
  readonly gid: number;
}

/**
 * Resolves an image's `USER` (`user[:group]`, names or numbers) with its own account files. Undefined for root, and for
 * what names nobody: then the default applies. A user without a group has that of the account file, else its own number.
 */
export function imageUser(
  declared: string,
  passwd: string | undefined,
  group: string | undefined,
): ImageUser | undefined {
  const [user = "", wantedGroup = ""] = declared.split(":");
  const accounts = fields(passwd, 7);
  const account = accounts.find(([name, , uid]) => name === user || (/^[0-9]+$/.test(user) && uid === user));
  const uid = numeric(user) ?? numeric(account?.[2]);
  const named = fields(group, 4).find(([name]) => name === wantedGroup);
  const gid = wantedGroup === "" ? (numeric(account?.[3]) ?? uid) : (numeric(wantedGroup) ?? numeric(named?.[2]));
  return uid === undefined || gid === undefined ? undefined : { uid, gid };
}

/** The image's accounts with the agent's among them, and the agent's name there. Passwords stay out. */
export function passwdFor(
  image: string | undefined,
  agent: { readonly uid: number; readonly gid: number; readonly shell: string },
): { readonly text: string; readonly user: string } {
  const { uid, gid, shell } = agent;
  let user: string | undefined;
  const kept = fields(image, 7).map(([name, , id, group, comment, home, program]) => {
    if (id !== String(uid)) return [name, "x", id, group, comment, home, program].join(":");
    user ??= name!;
    return [name, "x", id, group, comment, HOME, program || shell].join(":");
  });
  const taken = (name: string) => kept.some((line) => line.startsWith(`${name}:`));
  if (user === undefined) {
    user = taken(AGENT_USER) ? `${AGENT_USER}-agent` : AGENT_USER;
    kept.push(`${user}:x:${uid}:${gid}::${HOME}:${shell}`);
  }
  if (!taken("root")) kept.unshift("root:x:0:0:root:/root:/sbin/nologin");
  return { text: `${kept.join("\n")}\n`, user };
}

/** The image's groups with the agent's among them. */
export function groupFor(image: string | undefined, gid: number): string {
  const kept = fields(image, 4).map(([name, , id, members]) => [name, "x", id, members].join(":"));
  const taken = (name: string) => kept.some((line) => line.startsWith(`${name}:`));
  if (!kept.some((line) => line.split(":")[2] === String(gid))) {
    kept.push(`${taken(AGENT_USER) ? `${AGENT_USER}-agent` : AGENT_USER}:x:${gid}:`);
  }
  if (!taken("root")) kept.unshift("root:x:0:");
  return `${kept.join("\n")}\n`;
}

/** Well-formed lines only. */
function fields(text: string | undefined, count: number): readonly (readonly string[])[] {
  return (text ?? "").split("\n").flatMap((line) => {
    const parts = line.split(":");
    const good =
      line.length <= MAX_LINE && parts.length === count && parts[0] !== "" && /^[0-9]{1,10}$/.test(parts[2]!);
    return good && !/[\u0000-\u0008\u000b-\u001f]/.test(line) ? [parts] : [];
  });
}

/** An id that an agent can have. */
function numeric(text: string | undefined): number | undefined {
  if (text === undefined || !/^[1-9][0-9]{0,9}$/.test(text)) return undefined;
  const id = Number(text);
  return id <= MAXIMUM_ID ? id : undefined;
}
