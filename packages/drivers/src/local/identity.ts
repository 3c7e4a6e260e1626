import type { IsolationLayer } from "@openshell/boundary";
import type { PlanIdentity } from "@openshell/boundary/local/plan.ts";
import { DriverError, type ProcessIdentityRequest } from "../driver.ts";

/** Host ids that one sandbox owns alone. */
export const IDS_PER_SANDBOX = 65_536;

/**
 * First host id of block 0: above what distributions, containers (subuid) and systemd hand out, below its foreign range
 * (systemd's UIDS-GIDS.md).
 */
export const FIRST_BLOCK_ID = 0x7000_0000;
/** Blocks up to systemd's foreign range at 0x7FFE0000. */
export const ID_BLOCKS = 4_094;

/** Inside id when neither policy nor image names one. */
export const DEFAULT_ID = 1_000;
/** The last id that is not the "no id" value; the reference's upper limit. */
export const MAXIMUM_ID = 4_294_967_294;

/** Whose rights the gateway has. */
export type IdentityMode =
  | { readonly kind: "root"; readonly firstId: number; readonly blocks: number }
  | { readonly kind: "user"; readonly uid: number; readonly gid: number };

/** Who the agent is, inside and outside. */
export interface ResolvedIdentity {
  readonly plan: PlanIdentity;
  readonly outsideUid: number;
  readonly outsideGid: number;
  readonly isolation: IsolationLayer;
}

/**
 * Resolves the policy's process section (docs/architecture/drivers.md).
 *
 * Root: a block of host ids of the sandbox's own; inside id from the policy, else the image's, else 1000. User: the gateway's own id, the
 * same inside and outside, so that nothing the agent makes needs another id; a policy that asks for another is refused.
 * Subordinate ids (newuidmap) are not used. Throws `identity_refused`.
 */
export function resolveIdentity(
  request: ProcessIdentityRequest,
  mode: IdentityMode,
  idBlock: number | undefined,
  image?: { readonly uid: number; readonly gid: number },
): ResolvedIdentity {
  const uid = requestedId("run_as_user", request.runAsUser) ?? (mode.kind === "root" ? image?.uid : undefined);
  const gid =
    requestedId("run_as_group", request.runAsGroup) ??
    // The image's group goes with the image's user.
    (mode.kind === "root" && uid === image?.uid ? image?.gid : undefined);
  return mode.kind === "root" ? blockIdentity(uid, gid, mode, idBlock) : singleIdentity(uid, gid, mode);
}

/** `sandbox`, empty, or a decimal id in 1…4294967294. Undefined means the default. */
function requestedId(field: string, value: string): number | undefined {
  if (value === "" || value === "sandbox") return undefined;
  const id = /^[1-9][0-9]{0,9}$/.test(value) ? Number(value) : Number.NaN;
  if (!(id <= MAXIMUM_ID)) {
    throw new DriverError(
      "identity_refused",
      `process.${field} must be 'sandbox' or a numeric id in 1..${MAXIMUM_ID}, got ${JSON.stringify(value.slice(0, 80))}`,
      { next: "Correct the policy's process section; the agent is never root" },
    );
  }
  return id;
}

function blockIdentity(
  uid: number | undefined,
  gid: number | undefined,
  mode: IdentityMode & { readonly kind: "root" },
  idBlock: number | undefined,
): ResolvedIdentity {
  if (idBlock === undefined || !Number.isInteger(idBlock) || idBlock < 0 || idBlock >= mode.blocks) {
    throw new DriverError(
      "identity_refused",
      `no block of host ids is allotted (block ${idBlock}, ${mode.blocks} exist)`,
      {
        next: "Delete sandboxes that are no longer needed",
      },
    );
  }
  const base = mode.firstId + idBlock * IDS_PER_SANDBOX;
  const insideUid = uid ?? DEFAULT_ID;
  const insideGid = gid ?? uid ?? DEFAULT_ID;
  const users = mapBlock(insideUid, base);
  const groups = mapBlock(insideGid, base);
  return {
    plan: { uid: insideUid, gid: insideGid, uidMap: users.map, gidMap: groups.map, denySetgroups: false },
    outsideUid: users.outside,
    outsideGid: groups.outside,
    isolation: {
      name: "workload_identity",
      enforced: true,
      detail: `${insideUid}:${insideGid} inside is ${users.outside}:${groups.outside} outside, of ${IDS_PER_SANDBOX} ids of its own`,
    },
  };
}

/** The block appears as 0…65535; an inside id beyond takes the block's last host id. */
function mapBlock(
  inside: number,
  base: number,
): { readonly map: readonly { inside: number; outside: number; count: number }[]; readonly outside: number } {
  if (inside < IDS_PER_SANDBOX) {
    return { map: [{ inside: 0, outside: base, count: IDS_PER_SANDBOX }], outside: base + inside };
  }
  const last = base + IDS_PER_SANDBOX - 1;
  return {
    map: [
      { inside: 0, outside: base, count: IDS_PER_SANDBOX - 1 },
      { inside, outside: last, count: 1 },
    ],
    outside: last,
  };
}

function singleIdentity(
  uid: number | undefined,
  gid: number | undefined,
  mode: IdentityMode & { readonly kind: "user" },
): ResolvedIdentity {
  if (mode.uid === 0 || mode.gid === 0) {
    throw new DriverError(
      "identity_refused",
      "a gateway with uid or gid 0 but without root's rights cannot give the agent an id",
      {
        next: "Run the gateway as an ordinary user, or as root with CAP_SYS_ADMIN and CAP_SETUID",
      },
    );
  }
  for (const [field, wanted, own] of [
    ["run_as_user", uid, mode.uid],
    ["run_as_group", gid, mode.gid],
  ] as const) {
    if (wanted !== undefined && wanted !== own) {
      throw new DriverError(
        "identity_refused",
        `process.${field} ${wanted} is not available: this gateway does not run as root and gives every agent its own id ${own}; subordinate ids (/etc/subuid, /etc/subgid) are not used`,
        {
          next: `Leave process.${field} out, set it to 'sandbox' or ${own}, or run the gateway as root`,
        },
      );
    }
  }
  return {
    plan: {
      uid: mode.uid,
      gid: mode.gid,
      uidMap: [{ inside: mode.uid, outside: mode.uid, count: 1 }],
      gidMap: [{ inside: mode.gid, outside: mode.gid, count: 1 }],
      denySetgroups: true,
    },
    outsideUid: mode.uid,
    outsideGid: mode.gid,
    isolation: {
      name: "workload_identity",
      enforced: false,
      detail: `${mode.uid}:${mode.gid} inside and outside: the gateway's own id, since it does not run as root`,
    },
  };
}
