import { create } from "@bufbuild/protobuf";
import {
  type LogBatch,
  type SupervisorUplink,
  SupervisorUplinkSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { BoundedQueue } from "@openshell/base/queue.ts";

/** Messages of one session that wait for the gateway; a gateway that stops reading ends the session. */
const QUEUE_LIMIT = 1_024;
/** Log batches (≤ 256 KiB each) are not added to more waiting messages than this. */
const LOG_QUEUE_LIMIT = 8;

/** The sending half of one ConnectSupervisor stream. */
export class Uplink {
  readonly #queue = new BoundedQueue<SupervisorUplink>(QUEUE_LIMIT);

  get messages(): AsyncIterable<SupervisorUplink> {
    return this.#queue;
  }

  /** False when the session is over or the gateway does not read any more. */
  send(message: SupervisorUplink["message"]): boolean {
    const accepted = this.#queue.offer(create(SupervisorUplinkSchema, { message }));
    if (!accepted) this.#queue.close();
    return accepted;
  }

  /** False, and nothing is sent, while the gateway lags: lines are not worth a session. */
  sendLogs(batch: LogBatch): boolean {
    return this.#queue.size < LOG_QUEUE_LIMIT && this.send({ case: "logs", value: batch });
  }

  end(): void {
    this.#queue.close();
  }
}
