export * from "./addresses.ts";
export type { CertificateKind, ServerCertificate } from "./ca.ts";
export { type HostOptions, type Service, type SocketHandler, TestHost } from "./host.ts";
export { TestInternet } from "./internet.ts";
export type { Answers, NameRecords, ReceivedQuery, TestNameServer } from "./name-server.ts";
export type { PacketCounters } from "./namespace.ts";
export type { Received, ReceivedConnection, ReceivedDatagram, ReceivedRequest } from "./record.ts";
export { BULK_BYTES, bulkSha256, type Echo, type HttpHandler, marker } from "./responses.ts";
