import { JAVA_TRUST_STORES, SYSTEM_BUNDLES } from "../ca-bundle.ts";
import { type ImageUser, imageUser } from "./accounts.ts";
import type { ImageConfig } from "./container.ts";
import { ImageLimit } from "./limits.ts";
import { lookUp, readInside } from "./lookup.ts";

/** What a launch must know of an image. */
export interface ImageFacts {
  /** Its root on the host, without links. */
  readonly root: string;
  readonly config: ImageConfig;
  readonly user: ImageUser | undefined;
  readonly passwd: string | undefined;
  readonly group: string | undefined;
  readonly shell: string;
  /** Root certificates that it trusts, PEM. */
  readonly bundlePem: string;
  /** Places where its programs look for them. */
  readonly bundles: readonly string[];
  readonly javaStores: readonly string[];
}

/** Looks into an image; follows its links as they would be followed inside. */
export function imageFacts(root: string, config: ImageConfig): ImageFacts {
  const passwd = readInside(root, "/etc/passwd", ImageLimit.accountBytes);
  const group = readInside(root, "/etc/group", ImageLimit.accountBytes);
  const isFile = (path: string) => lookUp(root, path)?.stat.isFile() === true;
  const bundles = SYSTEM_BUNDLES.filter(isFile);
  const [bundle] = bundles;
  return {
    root,
    config,
    user: imageUser(config.user, passwd, group),
    passwd,
    group,
    shell: isFile("/bin/bash") ? "/bin/bash" : "/bin/sh",
    bundlePem: bundle === undefined ? "" : (readInside(root, bundle, ImageLimit.bundleBytes) ?? ""),
    // An image without any still gets one where most programs look.
    bundles: bundles.length > 0 ? bundles : SYSTEM_BUNDLES.slice(0, 1),
    javaStores: JAVA_TRUST_STORES.filter(isFile),
  };
}
