import type { DescMessage, DescMethod } from "@bufbuild/protobuf";
import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import { ERROR_DOMAIN, readErrorDetails } from "@openshell/api/errors.ts";

/** Codes whose text alone says everything: what is missing, what failed inside, and who left. */
const WITHOUT_NEXT_STEP: ReadonlySet<Code> = new Set([Code.NotFound, Code.Internal, Code.Canceled]);
/** A violation may speak of these too: the request as a whole, a choice of a message, a header. */
const OTHER_ROOTS = /^(?:request|payload|openshell-attach|#\d+)$/;
// What a terminal would obey. Line ends are layout.
const CONTROLS = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/;

/** What is wrong with the form of an error that a method answers; undefined when nothing is. */
export function errorProblem(error: ConnectError, method: Pick<DescMethod, "name" | "input">): string | undefined {
  const { code, rawMessage } = error;
  const { reason, domain, violations } = readErrorDetails(error);
  const where = `${method.name} answered ${Code[code]} "${rawMessage}"`;
  if (rawMessage === "") return `${where}: no text`;
  if (CONTROLS.test(rawMessage)) return `${where}: control characters`;
  if (/\n\s+at |node:internal|\[object /.test(rawMessage)) return `${where}: the inside of a program`;
  if (reason !== undefined && domain !== ERROR_DOMAIN) return `${where}: a reason of domain ${domain}`;
  if (code === Code.InvalidArgument) {
    if (reason !== "INVALID_ARGUMENT" || violations.length === 0) return `${where}: no violation`;
    const wrong = violations.find(({ field }) => !isFieldPath(method.input, field));
    return wrong === undefined ? undefined : `${where}: ${wrong.field} is no field of ${method.input.name}`;
  }
  if (WITHOUT_NEXT_STEP.has(code)) return undefined;
  return /\. [A-Z"]/.test(rawMessage) ? undefined : `${where}: no next step`;
}

/** Whether a path begins with fields of the message, in proto names; what is inside brackets is the caller's. */
function isFieldPath(schema: DescMessage, path: string): boolean {
  const [root = ""] = path.split(/[.[]/);
  if (OTHER_ROOTS.test(root)) return true;
  const field = schema.fields.find(({ name }) => name === root);
  if (field === undefined) return false;
  const rest = path.slice(root.length).replace(/^\[[^\]]*\]/, "");
  const inner = field.message;
  // Policies and Structs have paths of their own below their field.
  if (!rest.startsWith(".") || inner === undefined) return true;
  if (inner.name === "SandboxPolicy" || inner.typeName.startsWith("google.protobuf.")) return true;
  return isFieldPath(inner, rest.slice(1));
}

/** Hands every error that leaves a handler, in the middle of a stream too, to `found` when its form is wrong. */
export function watchErrors(found: (problem: string) => void): Interceptor {
  const look = (error: unknown, method: DescMethod): void => {
    const problem = errorProblem(ConnectError.from(error), method);
    if (problem !== undefined) found(problem);
  };
  return (next) => async (request) => {
    try {
      const response = await next(request);
      if (!response.stream) return response;
      return { ...response, message: watched(response.message, (error) => look(error, request.method)) };
    } catch (error) {
      look(error, request.method);
      throw error;
    }
  };
}

async function* watched<T>(messages: AsyncIterable<T>, look: (error: unknown) => void): AsyncGenerator<T> {
  try {
    yield* messages;
  } catch (error) {
    look(error);
    throw error;
  }
}
