import { describe, expect, it } from "vitest";
import { fileSystemOf, listeningSockets } from "./host-files.ts";

describe("listeningSockets", () => {
  it("reads path names with blanks, leaves unbound and abstract sockets out", () => {
    const table = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 1722 /run/a.sock
0000000000000000: 00000003 00000000 00000000 0001 03 1723
0000000000000000: 00000002 00000000 00010000 0001 01 1724 @abstract
0000000000000000: 00000002 00000000 00010000 0001 01 1725 /home/me/with blank/b.sock
0000000000000000: 00000002 00000000 00010000 0001 01 1726 /run/a.sock
`;
    expect(listeningSockets(table)).toEqual(["/run/a.sock", "/home/me/with blank/b.sock"]);
  });
});

describe("fileSystemOf", () => {
  const MOUNTS = `27 1 254:0 / / rw - ext4 /dev/vda rw
30 27 0:9 / /mnt rw - nfs4 server:/x rw
31 30 0:10 / /mnt/my\\040disk rw shared:1 - fuse.sshfs x rw
32 27 0:11 / /mnt rw - tmpfs tmpfs rw
`;
  it("takes the longest mount point, and the last of two on the same point", () => {
    expect(fileSystemOf("/home/x", MOUNTS)).toBe("ext4");
    expect(fileSystemOf("/mnt/file", MOUNTS)).toBe("tmpfs");
    expect(fileSystemOf("/mnt/my disk/file", MOUNTS)).toBe("fuse.sshfs");
    expect(fileSystemOf("/mntx", MOUNTS)).toBe("ext4");
  });
});
