import {
  attribute,
  attributeU32,
  compile,
  message,
  NLM_F_ACK,
  NLM_F_CREATE,
  NLM_F_EXCL,
  NLM_F_REQUEST,
} from "./netlink.ts";

/** Routing table that only TCP looks up, so that every TCP destination is local and everything else is unreachable at once. */
export const CAPTURE_TABLE = 100;
/** After the local table (0), before main (32766). */
export const CAPTURE_RULE_PRIORITY = 10;

const RTM_NEWLINK = 16;
const RTM_NEWROUTE = 24;
const RTM_NEWRULE = 32;

const AF_UNSPEC = 0;
const AF_INET = 2;
const AF_INET6 = 10;
/** Loopback is the first interface of every network namespace (drivers/net/loopback.c). */
const LOOPBACK_INDEX = 1;
const IFF_UP = 1;

const RTA_OIF = 4;
const RTA_PREFSRC = 7;
const RTA_TABLE = 15;
const RTPROT_STATIC = 4;
const RT_SCOPE_UNIVERSE = 0;
const RT_SCOPE_HOST = 254;
const RTN_LOCAL = 2;

const FRA_PRIORITY = 6;
const FRA_TABLE = 15;
const FRA_IP_PROTO = 22;
const FRA_DPORT_RANGE = 24;
const FR_ACT_TO_TBL = 1;
const IPPROTO_TCP = 6;

const CREATE = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;

/** One rtnetlink message. `optional`: its failure means "no IPv6 here", not a broken sandbox. */
export interface RouteMessage {
  readonly message: Uint8Array;
  readonly optional: boolean;
}

/**
 * Messages that make a network namespace with nothing but loopback capture TCP, in order, each acknowledged.
 *
 * Equivalent to `ip link set lo up`, `ip route add local 0.0.0.0/0 dev lo table 100 src 127.0.0.1`, `ip rule add pref 10
 * ipproto tcp lookup 100`, and the same for IPv6. With a source address, peers show as 127.0.0.1 or ::1 instead of the
 * destination; with a rule for TCP alone, UDP and ICMP fail with ENETUNREACH instead of hanging.
 *
 * `ports`: only these are captured (a rule each with `dport`), any other TCP port is unreachable at once. A reset from a
 * foreign local address could not be sent, so without that the agent would wait. Empty: every port.
 */
export function captureRoutes(ports: readonly number[] = []): readonly RouteMessage[] {
  const wanted = ports.length === 0 ? [undefined] : ports;
  let sequence = 1;
  const rules = (family: number, optional: boolean): readonly RouteMessage[] =>
    wanted.map((port) => ({ message: tcpRule(++sequence, family, port), optional }));
  return [
    { message: loopbackUp(sequence), optional: false },
    { message: localRoute(++sequence, AF_INET), optional: false },
    ...rules(AF_INET, false),
    { message: localRoute(++sequence, AF_INET6), optional: true },
    ...rules(AF_INET6, true),
  ];
}

function loopbackUp(sequence: number): Uint8Array {
  return compile((writer) =>
    message(writer, { type: RTM_NEWLINK, flags: NLM_F_REQUEST | NLM_F_ACK, sequence }, (body) =>
      // struct ifinfomsg: family, pad, type, index, flags, change mask.
      body.u8(AF_UNSPEC).u8(0).u16(0).i32(LOOPBACK_INDEX).u32(IFF_UP).u32(IFF_UP),
    ),
  );
}

function localRoute(sequence: number, family: number): Uint8Array {
  const v4 = family === AF_INET;
  const source = v4 ? Uint8Array.of(127, 0, 0, 1) : Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1);
  return compile((writer) =>
    message(writer, { type: RTM_NEWROUTE, flags: CREATE, sequence }, (body) => {
      // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
      body.u8(family).u8(0).u8(0).u8(0).u8(CAPTURE_TABLE).u8(RTPROT_STATIC);
      body
        .u8(v4 ? RT_SCOPE_HOST : RT_SCOPE_UNIVERSE)
        .u8(RTN_LOCAL)
        .u32(0);
      attributeU32(body, RTA_OIF, LOOPBACK_INDEX);
      attribute(body, RTA_PREFSRC, source);
      attributeU32(body, RTA_TABLE, CAPTURE_TABLE);
    }),
  );
}

function tcpRule(sequence: number, family: number, port: number | undefined): Uint8Array {
  return compile((writer) =>
    message(writer, { type: RTM_NEWRULE, flags: CREATE, sequence }, (body) => {
      // struct fib_rule_hdr: family, dst_len, src_len, tos, table, two reserved bytes, action, flags.
      body.u8(family).u8(0).u8(0).u8(0).u8(CAPTURE_TABLE).u8(0).u8(0).u8(FR_ACT_TO_TBL).u32(0);
      attributeU32(body, FRA_PRIORITY, CAPTURE_RULE_PRIORITY);
      attributeU32(body, FRA_TABLE, CAPTURE_TABLE);
      attribute(body, FRA_IP_PROTO, Uint8Array.of(IPPROTO_TCP));
      // struct fib_rule_port_range: first and last port, host byte order (little endian here).
      if (port !== undefined) {
        const [low, high] = [port & 0xff, port >> 8];
        attribute(body, FRA_DPORT_RANGE, Uint8Array.of(low, high, low, high));
      }
    }),
  );
}
