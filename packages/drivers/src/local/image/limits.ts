/** Limits of image archives. Sizes in bytes. */
export const ImageLimit = {
  /** Of an archive, and of what it unpacks to; as `rootfs_tar_max_bytes` of OpenShell 0.1. */
  bytes: 10 * 2 ** 30,
  /** Names in an archive, all layers together. A full distribution with a desktop has about half as many. */
  entries: 1_000_000,
  /** Linux's PATH_MAX and NAME_MAX. */
  pathBytes: 4_095,
  nameBytes: 255,
  /** One extended header; what it holds is a path. */
  headerBytes: 1 << 20,
  /** Layers of an image that `docker save` wrote; Docker itself stops at 127. */
  layers: 127,
  /** A JSON document in such an image. */
  documentBytes: 4 << 20,
  /** Account files and root certificates read out of an image. */
  accountBytes: 1 << 20,
  bundleBytes: 4 << 20,
} as const;

/** What an archive may hold; tests use smaller ones. */
export interface ArchiveLimits {
  readonly bytes: number;
  readonly entries: number;
}
