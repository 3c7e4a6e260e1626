import { exactBinaries, type Policy } from "@openshell/policy";

/**
 * Folders that come from the host or the image, where links are looked up as the agent cannot change them. Links elsewhere
 * are not followed: an agent that may write a link could choose which executable a rule means.
 */
const SHARED_READ_ONLY = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"] as const;

function isShared(path: string): boolean {
  return SHARED_READ_ONLY.some((folder) => path === folder || path.startsWith(`${folder}/`));
}

/**
 * Real paths of the executables that a policy names through links of the system, such as `/usr/bin/python3` for
 * `/usr/bin/python3.12`: identity is always the real path, people write the other one.
 */
export async function resolveBinaries(
  policy: Policy,
  resolve: (path: string) => Promise<string>,
): Promise<ReadonlyMap<string, string>> {
  const resolved = new Map<string, string>();
  await Promise.all(
    exactBinaries(policy)
      .filter(isShared)
      .map(async (path) => {
        const real = await resolve(path).catch(() => undefined);
        if (real !== undefined && real !== path && isShared(real)) resolved.set(path, real);
      }),
  );
  return resolved;
}
