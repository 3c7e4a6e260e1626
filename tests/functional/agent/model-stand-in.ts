import type { IncomingMessage, ServerResponse } from "node:http";
import type { HttpHandler } from "../../support/internet/index.ts";

/**
 * A model API as agents see it: OpenAI's chat completions, streamed as server-sent events. Instead of a model there is a
 * list of turns; which one comes next is read from the conversation that the request carries, as with a real model.
 */

/** What the model says in one turn. */
export type Turn =
  | { readonly text: string }
  | { readonly tool: string; readonly arguments: Readonly<Record<string, unknown>> };

/** A tool's answer, as the agent gave it back to the model. */
export interface ToolResult {
  readonly tool: string;
  readonly output: string;
}

interface ChatMessage {
  readonly role: string;
  readonly content?: unknown;
  readonly tool_call_id?: string;
  readonly tool_calls?: readonly { readonly id: string; readonly function: { readonly name: string } }[];
}

interface ChatRequest {
  readonly model?: string;
  readonly stream?: boolean;
  readonly messages?: readonly ChatMessage[];
  readonly tools?: readonly { readonly function: { readonly name: string } }[];
}

const MODEL = "model-1";
/** Pieces in which text and arguments are streamed, as models do: small enough to be split inside words. */
const PIECE_CHARACTERS = 7;
const MAX_BODY_BYTES = 8 * 1024 * 1024;

export class ModelStandIn {
  /** Authorization fields of all requests, as received. */
  readonly keys: (string | undefined)[] = [];
  /** Bodies of all requests. */
  readonly bodies: string[] = [];
  /** Tool answers of the newest conversation, in order. */
  results: readonly ToolResult[] = [];
  /** The tools that the agent offered. */
  offered: readonly string[] = [];
  readonly #key: string;
  readonly #turns: readonly Turn[];

  /** `key` is what a request must carry as its bearer token. */
  constructor(key: string, turns: readonly Turn[]) {
    this.#key = key;
    this.#turns = turns;
  }

  readonly handler: HttpHandler = async (request, response) => {
    const text = await bodyOf(request);
    const { authorization } = request.headers;
    this.keys.push(authorization);
    this.bodies.push(text);
    if (authorization !== `Bearer ${this.#key}`) {
      refuse(response, 401, "invalid_api_key", "Incorrect API key provided");
      return;
    }
    if (request.method !== "POST" || request.url !== "/v1/chat/completions") {
      refuse(response, 404, "not_found", `there is no ${request.method} ${request.url}`);
      return;
    }
    const chat = JSON.parse(text) as ChatRequest;
    if (chat.model !== MODEL || chat.stream !== true || chat.messages === undefined) {
      refuse(response, 400, "invalid_request", "expected a streamed chat completion of the one model");
      return;
    }
    // Side questions (a title for the conversation) come without tools.
    const turn: Turn = (chat.tools ?? []).length === 0 ? { text: "A title" } : this.#next(chat);
    await stream(response, turn);
  };

  #next(chat: ChatRequest): Turn {
    this.offered = (chat.tools ?? []).map((tool) => tool.function.name);
    const calls = new Map<string, string>();
    const results: ToolResult[] = [];
    for (const message of chat.messages ?? []) {
      for (const call of message.tool_calls ?? []) calls.set(call.id, call.function.name);
      if (message.role === "tool") {
        results.push({ tool: calls.get(message.tool_call_id ?? "") ?? "", output: contentText(message.content) });
      }
    }
    this.results = results;
    return this.#turns[results.length] ?? { text: "There is nothing more to do." };
  }
}

function contentText(content: unknown): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((part: { text?: string }) => part.text ?? "").join("");
}

async function bodyOf(request: IncomingMessage): Promise<string> {
  const parts: Buffer[] = [];
  let size = 0;
  for await (const part of request as AsyncIterable<Buffer>) {
    size += part.length;
    if (size > MAX_BODY_BYTES) throw new Error("the request is larger than a model would take");
    parts.push(part);
  }
  return Buffer.concat(parts).toString();
}

function refuse(response: ServerResponse, status: number, code: string, message: string): void {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify({ error: { message, type: "invalid_request_error", param: null, code } }));
}

function pieces(text: string): readonly string[] {
  return text.match(new RegExp(`[^]{1,${PIECE_CHARACTERS}}`, "g")) ?? [];
}

let lastId = 0;

async function stream(response: ServerResponse, turn: Turn): Promise<void> {
  const id = `chatcmpl-${++lastId}`;
  response.writeHead(200, { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" });
  const send = async (delta: unknown, finish: string | null = null, usage?: unknown): Promise<void> => {
    const chunk = {
      id,
      object: "chat.completion.chunk",
      created: Math.floor(Date.now() / 1000),
      model: MODEL,
      choices: usage === undefined ? [{ index: 0, delta, finish_reason: finish, logprobs: null }] : [],
      ...(usage === undefined ? {} : { usage }),
    };
    response.write(`data: ${JSON.stringify(chunk)}\n\n`);
    // One chunk a turn of the event loop: several packets, as from a real service.
    await new Promise((done) => setImmediate(done));
  };
  if ("text" in turn) {
    await send({ role: "assistant", content: "" });
    for (const content of pieces(turn.text)) await send({ content });
    await send({}, "stop");
  } else {
    const call = { index: 0, id: `call_${lastId}`, type: "function", function: { name: turn.tool, arguments: "" } };
    await send({ role: "assistant", content: null, tool_calls: [call] });
    for (const part of pieces(JSON.stringify(turn.arguments))) {
      await send({ tool_calls: [{ index: 0, function: { arguments: part } }] });
    }
    await send({}, "tool_calls");
  }
  await send({}, null, { prompt_tokens: 10, completion_tokens: 10, total_tokens: 20 });
  response.end("data: [DONE]\n\n");
}
