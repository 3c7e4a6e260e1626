import { create } from "@bufbuild/protobuf";
import {
  type SupervisorUplink,
  SupervisorUplinkSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { BoundedQueue } from "../exec/queue.ts";

/** Messages of one session that wait for the gateway; a gateway that stops reading ends the session. */
const QUEUE_LIMIT = 1_024;

/** The sending half of one ConnectSupervisor stream. */
export class Uplink {
  readonly #queue = new BoundedQueue<SupervisorUplink>(QUEUE_LIMIT);

  get messages(): AsyncIterable<SupervisorUplink> {
    return this.#queue;
  }

  /** False when the session is over or the gateway does not read any more. */
  send(message: SupervisorUplink["message"]): boolean {
    const accepted = this.#queue.offer(create(SupervisorUplinkSchema, { message }));
    if (!accepted) this.#queue.end();
    return accepted;
  }

  end(): void {
    this.#queue.end();
  }
}
