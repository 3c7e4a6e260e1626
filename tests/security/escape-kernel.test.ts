import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect } from "vitest";
import { attack, expectOutcomes, openLab } from "../support/attack.ts";

/** Out of the sandbox by system calls: namespaces, mounts, sockets, rarely used kernel code, identities, devices. */

openLab({ c: { kernel: readFileSync(join(import.meta.dirname, "programs/kernel.c"), "utf8") } });

attack(
  "mount, remount, unmount, pivot_root and chroot",
  "the machine's mounts are the same; the sandbox's own as well",
  { root: "EPERM", user: "EPERM" },
  async ({ box }, expected) => {
    const before = await box.sh("cat /proc/self/mountinfo");
    expectOutcomes(await box.exec(["/attack/kernel", "mounts"]), expected, 14);
    expect(await box.sh("cat /proc/self/mountinfo")).toEqual(before);
  },
);

attack(
  "the new mount calls: fsopen, open_tree, move_mount, mount_setattr",
  "the machine's mounts are the same; /usr stays read-only",
  { root: "EPERM", user: "EPERM" },
  async ({ box }, expected) => {
    expectOutcomes(await box.exec(["/attack/kernel", "new-mounts"]), expected, 7);
    expect((await box.sh("touch /usr/x")).exitCode).not.toBe(0);
  },
);

attack(
  "a namespace of its own by unshare, clone with every flag and setns",
  "no namespace comes into being: the agent's processes stay in the sandbox's",
  { root: "EPERM", user: "EPERM" },
  async ({ box }, expected) => {
    const spaces = "for n in user mnt net pid ipc uts cgroup; do readlink /proc/self/ns/$n; done";
    const before = (await box.sh(spaces)).stdout;
    expectOutcomes(await box.exec(["/attack/kernel", "namespaces"]), expected, 26);
    expect((await box.sh(`unshare -Ur true ; ${spaces}`)).stdout).toBe(before);
  },
);

attack(
  "a namespace by clone3, whose flags no filter can see",
  "the call does not exist",
  { root: "ENOSYS", user: "ENOSYS" },
  async ({ box }, expected) => expectOutcomes(await box.exec(["/attack/kernel", "clone3"]), expected, 1),
);

attack(
  "raw, packet, vsock, SCTP, DCCP, netlink and other sockets",
  "none is made; the trap host gets no packet",
  {
    root: "EPERM or EAFNOSUPPORT or EPROTONOSUPPORT",
    user: "EPERM or EAFNOSUPPORT or EPROTONOSUPPORT",
  },
  async ({ box }, expected) => expectOutcomes(await box.exec(["/attack/kernel", "sockets"]), expected, 49),
);

attack(
  "change routes, addresses, links and rules of the sandbox's network",
  "links and routes of the sandbox stay as they were: loopback only",
  { root: "EPERM or ENOENT", user: "EPERM or ENOENT" },
  async ({ box }, expected) => {
    const look = "cat /proc/net/route /proc/net/ipv6_route; cut -d: -f1 /proc/net/dev";
    const before = (await box.sh(look)).stdout;
    expectOutcomes(await box.exec(["/attack/kernel", "routes"]), expected, 16);
    expect((await box.sh(look)).stdout).toBe(before);
    expect(before.trim().split("\n").at(-1)?.trim()).toBe("lo");
  },
);

attack(
  "bpf, perf, io_uring, userfaultfd, keyrings, modules, kexec, clocks, host name",
  "the machine's host name and settings are the same",
  { root: "EPERM", user: "EPERM" },
  async ({ box }, expected) => {
    const arch = process.arch === "x64" ? 30 : 27;
    expectOutcomes(await box.exec(["/attack/kernel", "surface"]), expected, arch);
  },
);

attack(
  "open a file of the machine by its handle (open_by_handle_at)",
  "no handle is given or taken; openat2 does not exist",
  { root: "EPERM or ENOSYS", user: "EPERM or ENOSYS" },
  async ({ box }, expected) => expectOutcomes(await box.exec(["/attack/kernel", "handles"]), expected, 3),
);

attack(
  "make and open device nodes, /dev/mem, /dev/kmsg, disks, kvm, fuse",
  "no device but the harmless ones is there",
  {
    root: "EPERM or ENOENT or EACCES or EROFS",
    user: "EPERM or ENOENT or EACCES or EROFS",
  },
  async ({ box }, expected) => {
    expectOutcomes(await box.exec(["/attack/kernel", "devices"]), expected, 14);
    const { stdout } = await box.sh("find / -xdev -type b 2>/dev/null; ls /dev");
    expect(stdout.trim().split("\n")).toEqual(
      "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero".split(" "),
    );
  },
);

attack(
  "push characters into a terminal (TIOCSTI, TIOCLINUX), change its line discipline",
  "nothing appears in the terminal's input",
  { root: "EPERM", user: "EPERM" },
  async ({ box }, expected) => {
    const result = await box.exec(["/attack/kernel", "terminal"], { tty: true });
    expectOutcomes({ ...result, stdout: result.stdout.replaceAll("\r", "") }, expected, 4);
  },
);

attack(
  "become root: setuid, capabilities, uid_map, own seccomp filters",
  "the agent keeps its uid and has no capability",
  { root: "EPERM or EINVAL or EACCES", user: "EPERM or EINVAL or EACCES" },
  async ({ box }, expected) => {
    expectOutcomes(await box.exec(["/attack/kernel", "identities"]), expected, 11);
    const { stdout } = await box.sh("id -u; grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs)' /proc/self/status");
    expect(stdout).toMatch(/^[1-9]\d*\n(Cap...:\t0{16}\n){5}NoNewPrivs:\t1\n$/);
  },
);

attack(
  "system calls of other tables (int 0x80, x32) around the filter",
  "the process is killed by SIGSYS before the call",
  { root: "SIGSYS", user: "SIGSYS" },
  async ({ box }, expected) => expectOutcomes(await box.exec(["/attack/kernel", "old-calls"]), expected, 2),
);

attack(
  "set-user-id programs of the machine: su, sudo, mount, ping, newuidmap",
  "none of them runs with another uid; the trap host gets no ping",
  { root: "no new privileges", user: "no new privileges" },
  async ({ box }, expected) => {
    expect(expected).toBe("no new privileges");
    const script = `
      echo | su -s /bin/sh root -c 'id -u > /tmp/su-worked' 
      sudo -n sh -c 'id -u > /tmp/sudo-worked'
      mkdir -p /tmp/mm; mount -t tmpfs t /tmp/mm && echo mounted
      ping -c1 -W1 28.55.1.1 | grep -c 'bytes from'
      newuidmap $$ 0 0 1 && echo mapped
      ls /tmp/su-worked /tmp/sudo-worked
      for p in $(find /usr -xdev -perm -4000 2>/dev/null); do test -u $p && echo "setuid $p"; done`;
    const { stdout } = await box.sh(script);
    const lines = stdout
      .trim()
      .split("\n")
      .filter((line) => line !== "0" && !line.startsWith("setuid "));
    expect(lines.filter(Boolean)).toEqual([]);
    // The files are there, so what holds is the mount and no_new_privs.
    expect((await box.sh("grep -E ' /usr ' /proc/self/mountinfo")).stdout).toContain("nosuid");
  },
);
