import type { ByteWriter } from "./bytes.ts";
import {
  attribute,
  attributeString,
  attributeU32be,
  compile,
  message,
  NLM_F_ACK,
  NLM_F_APPEND,
  NLM_F_CREATE,
  NLM_F_REQUEST,
  nested,
} from "./netlink.ts";

/** Table and chain inside the sandbox's own network namespace. */
const TABLE = "openshell";
const CHAIN = "capture";

const NFNL_MSG_BATCH_BEGIN = 0x10;
const NFNL_MSG_BATCH_END = 0x11;
const NFNL_SUBSYS_NFTABLES = 10;
const NFT_MSG_NEWTABLE = (NFNL_SUBSYS_NFTABLES << 8) | 0;
const NFT_MSG_NEWCHAIN = (NFNL_SUBSYS_NFTABLES << 8) | 3;
const NFT_MSG_NEWRULE = (NFNL_SUBSYS_NFTABLES << 8) | 6;

const NFPROTO_UNSPEC = 0;
const NFPROTO_INET = 1;
const NFPROTO_IPV4 = 2;
const NFPROTO_IPV6 = 10;
const NF_ACCEPT = 1;
const NF_INET_LOCAL_OUT = 3;
/** NF_IP_PRI_NAT_DST. */
const PRIORITY_DNAT = -100;

const REGISTER = 1;
const META_NFPROTO = 15;
const META_L4PROTO = 16;
const CMP_EQ = 0;
const CMP_NEQ = 1;
const PAYLOAD_NETWORK_HEADER = 1;
const IPPROTO_TCP = 6;

const NFT_NAT_DNAT = 1;

/** Loopback addresses that captured IPv4 connections are spread over; the agent's own servers stand below. */
const SPREAD_FIRST = Uint8Array.of(127, 64, 0, 1);
const SPREAD_LAST = Uint8Array.of(127, 127, 255, 254);

/** Offset of the destination address in the IPv4 and the IPv6 header. */
const IPV4_DESTINATION = 16;
const IPV6_DESTINATION = 24;

/**
 * One nfnetlink batch: inet table, nat chain on the output hook, and two rules that redirect every TCP connection but
 * those to 127.0.0.0/8 and ::1 to `port` on loopback. The kernel acknowledges four messages: table, chain, two rules.
 *
 * Sending it twice appends the rules again: it is for a fresh network namespace only. Source of the layout:
 * linux/netfilter/nf_tables.h, nfnetlink.h.
 */
export function captureNftBatch(port: number): Uint8Array {
  return compile((writer) => {
    batchBoundary(writer, NFNL_MSG_BATCH_BEGIN, 1);
    nftMessage(writer, NFT_MSG_NEWTABLE, NLM_F_CREATE, 2, (body) => attributeString(body, 1, TABLE));
    nftMessage(writer, NFT_MSG_NEWCHAIN, NLM_F_CREATE, 3, (body) => {
      attributeString(body, 1, TABLE);
      attributeString(body, 3, CHAIN);
      nested(body, 4, (hook) => {
        attributeU32be(hook, 1, NF_INET_LOCAL_OUT);
        attributeU32be(hook, 2, PRIORITY_DNAT >>> 0);
      });
      attributeU32be(body, 5, NF_ACCEPT);
      attributeString(body, 7, "nat");
    });
    redirectRule(writer, 4, NFPROTO_IPV4, port, IPV4_DESTINATION, Uint8Array.of(127));
    redirectRule(
      writer,
      5,
      NFPROTO_IPV6,
      port,
      IPV6_DESTINATION,
      Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1),
    );
    batchBoundary(writer, NFNL_MSG_BATCH_END, 6);
  });
}

/** `meta nfproto F, meta l4proto tcp, destination prefix ≠ loopback`, then to `port`: IPv4 spread over loopback, IPv6 to ::1. */
function redirectRule(
  writer: ByteWriter,
  sequence: number,
  family: number,
  port: number,
  destinationOffset: number,
  loopbackPrefix: Uint8Array,
): void {
  nftMessage(writer, NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, sequence, (body) => {
    attributeString(body, 1, TABLE);
    attributeString(body, 2, CHAIN);
    nested(body, 4, (expressions) => {
      loadMeta(expressions, META_NFPROTO);
      compare(expressions, CMP_EQ, Uint8Array.of(family));
      loadMeta(expressions, META_L4PROTO);
      compare(expressions, CMP_EQ, Uint8Array.of(IPPROTO_TCP));
      expression(expressions, "payload", (data) => {
        attributeU32be(data, 1, REGISTER);
        attributeU32be(data, 2, PAYLOAD_NETWORK_HEADER);
        attributeU32be(data, 3, destinationOffset);
        attributeU32be(data, 4, loopbackPrefix.length);
      });
      compare(expressions, CMP_NEQ, loopbackPrefix);
      immediate(expressions, REGISTER, Uint8Array.of(port >> 8, port & 0xff));
      if (family === NFPROTO_IPV4) spread(expressions);
      else expression(expressions, "redir", (data) => attributeU32be(data, 1, REGISTER));
    });
  });
}

/**
 * `dnat to SPREAD_FIRST-SPREAD_LAST`, port from the register: the kernel picks the address by a hash of source and
 * destination (nf_nat_core.c, find_best_ips_proto). With a single address two connections from one source port to
 * different destinations would become one; the kernel then changes a source port, and the owner cannot be found.
 */
function spread(writer: ByteWriter): void {
  immediate(writer, REGISTER + 1, SPREAD_FIRST);
  immediate(writer, REGISTER + 2, SPREAD_LAST);
  expression(writer, "nat", (data) => {
    attributeU32be(data, 1, NFT_NAT_DNAT);
    attributeU32be(data, 2, NFPROTO_IPV4);
    attributeU32be(data, 3, REGISTER + 1);
    attributeU32be(data, 4, REGISTER + 2);
    attributeU32be(data, 5, REGISTER);
  });
}

function immediate(writer: ByteWriter, register: number, bytes: Uint8Array): void {
  expression(writer, "immediate", (data) => {
    attributeU32be(data, 1, register);
    nested(data, 2, (value) => attribute(value, 1, bytes));
  });
}

function loadMeta(writer: ByteWriter, key: number): void {
  expression(writer, "meta", (data) => {
    attributeU32be(data, 1, REGISTER);
    attributeU32be(data, 2, key);
  });
}

function compare(writer: ByteWriter, operator: number, value: Uint8Array): void {
  expression(writer, "cmp", (data) => {
    attributeU32be(data, 1, REGISTER);
    attributeU32be(data, 2, operator);
    nested(data, 3, (payload) => attribute(payload, 1, value));
  });
}

function expression(writer: ByteWriter, name: string, data: (writer: ByteWriter) => void): void {
  nested(writer, 1, (element) => {
    attributeString(element, 1, name);
    nested(element, 2, data);
  });
}

function nftMessage(
  writer: ByteWriter,
  type: number,
  flags: number,
  sequence: number,
  attributes: (writer: ByteWriter) => void,
): void {
  message(writer, { type, flags: NLM_F_REQUEST | NLM_F_ACK | flags, sequence }, (body) => {
    // struct nfgenmsg: family, version, resource id.
    body.u8(NFPROTO_INET).u8(0).u16be(0);
    attributes(body);
  });
}

/** Opens or closes a transaction; not acknowledged. */
function batchBoundary(writer: ByteWriter, type: number, sequence: number): void {
  message(writer, { type, flags: NLM_F_REQUEST, sequence }, (body) =>
    body.u8(NFPROTO_UNSPEC).u8(0).u16be(NFNL_SUBSYS_NFTABLES),
  );
}
