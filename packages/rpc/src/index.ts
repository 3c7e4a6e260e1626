export { createLaneTransport, type LaneTransport, type LaneTransportOptions } from "./client/transport.ts";
export { decodeEncoded, encodedBytes, encodedMessage } from "./encoded.ts";
export { grpcLane, type Lane, type LaneOptions } from "./server/lane.ts";
