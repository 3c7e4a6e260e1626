import { RuntimeError } from "@openshell/base";
import type { RequestAllowed, RequestDenied, RequestQuery } from "@openshell/policy/decision.ts";
import {
  type Answer,
  authorityMismatch,
  credentialRefused,
  invalid,
  invalidTarget,
  notPermitted,
  refused,
  traceRefused,
  unidentified,
  unreachable,
  upgradeRefused,
} from "./answers.ts";
import type { Channel } from "./channel.ts";
import type { EgressContext } from "./context.ts";
import type { CredentialEndpoint } from "./credential-source.ts";
import { formatError } from "./denial.ts";
import type { Origin, RequestEvent } from "./events.ts";
import { exchange, type Outgoing } from "./exchange.ts";
import { finding } from "./findings.ts";
import type { Generation } from "./generation.ts";
import { type Authority, parseAuthority } from "./host-name.ts";
import { openBody } from "./http1/body.ts";
import { HttpParseError, parseRequestHead, type RequestHead } from "./http1/head.ts";
import { readHead } from "./http1/read-head.ts";
import { type CanonicalTarget, canonicalTarget, decodeQuery } from "./http1/target.ts";
import type { Owner } from "./identify.ts";
import {
  BODY_IDLE_MS,
  CLIENT_IDLE_MS,
  DRAIN_BODY_BYTES,
  HEAD_MS,
  REIDENTIFY_IDLE_MS,
  REQUEST_TOTAL_MS,
} from "./limits.ts";
import { Target } from "./target.ts";
import type { Upstream } from "./upstream-pool.ts";

/** What a session needs to know of the connection it runs on. */
export interface SessionFlow {
  readonly origin: Origin;
  readonly owners: readonly Owner[];
  /** Looks the owners up again; undefined when they are known, else why not. */
  reidentify(): Promise<string | undefined>;
}

export interface SessionOptions {
  readonly scheme: "http" | "https";
  /** Where the connection goes. Undefined on the explicit proxy's plain connections: each request says it itself. */
  readonly target: Target | undefined;
  readonly headLimit: number;
}

/** `linger`: the client may still be sending, and must get to read its answer. */
type Next = "keep" | "close" | "linger" | "broken";

interface Active {
  readonly target: Target;
  readonly query: RequestQuery;
  readonly fixed: Pick<RequestEvent, "method" | "host" | "port" | "path">;
  readonly credential: { readonly identity: string; readonly endpoint: CredentialEndpoint } | undefined;
  upstream: Upstream | undefined;
  ended: boolean;
}

/** The requests of one client connection, one after the other: parse, decide, inject, forward, answer. */
export class HttpSession {
  readonly #context: EgressContext;
  readonly #flow: SessionFlow;
  readonly #client: Channel;
  readonly #options: SessionOptions;
  /** The last destination of a plain proxy connection, so that keep-alive requests resolve once. */
  #lastTarget: Target | undefined;
  #active: Active | undefined;
  /** Since when no request is being served. */
  #idleSince: number;

  constructor(context: EgressContext, flow: SessionFlow, client: Channel, options: SessionOptions) {
    this.#context = context;
    this.#flow = flow;
    this.#client = client;
    this.#options = options;
    this.#lastTarget = options.target;
    this.#idleSince = client.now();
    client.onClose(() => this.#active?.upstream?.channel.destroy(true));
  }

  /** Until the client connection is over. Never rejects. */
  async run(): Promise<void> {
    const client = this.#client;
    for (;;) {
      let next: Next;
      try {
        client.totalDeadline = 0;
        const bytes = await readHead(client, this.#options.headLimit, CLIENT_IDLE_MS, HEAD_MS);
        if (bytes === undefined) {
          client.end();
          client.destroy();
          return;
        }
        client.totalDeadline = client.now() + REQUEST_TOTAL_MS;
        next = await this.#serve(parseRequestHead(bytes));
      } catch (error) {
        next = await this.#unparsable(error);
      }
      if (next === "keep") continue;
      if (next === "close") client.finish();
      else if (next === "linger") await client.linger();
      else client.destroy(true);
      return;
    }
  }

  /** Ends the request in flight when `next` no longer allows it. True when it did. */
  reconsider(next: Generation): boolean {
    const active = this.#active;
    if (active === undefined) return false;
    const { target, query, fixed } = active;
    const refusal = target.reconsider(next, this.#flow.owners);
    const decision = refusal === undefined ? this.#decide(next, target, query) : undefined;
    const denied = refusal ?? (decision?.allowed === false ? decision : undefined);
    const revoked = decision?.allowed === true && this.#isRevoked(next, active, decision);
    if (denied === undefined && !revoked) return false;
    active.ended = true;
    this.#report(next, fixed, {
      outcome: "ended",
      policy: denied?.policy ?? "",
      engine: refusal?.engine ?? (denied === undefined ? "credential" : "l7"),
      code: "policy_changed",
      reason: denied?.reason ?? "the credential of this request was withdrawn",
      next: denied?.next ?? "",
      status: 0,
    });
    active.upstream?.channel.destroy(true);
    this.#client.destroy(true);
    return true;
  }

  async #serve(head: RequestHead): Promise<Next> {
    const context = this.#context;
    let canonical: CanonicalTarget;
    let query: RequestQuery;
    try {
      canonical = canonicalTarget(head.target);
      query = {
        method: head.method,
        path: canonical.path,
        query: decodeQuery(canonical.query),
        encodedSlash: canonical.encodedSlash,
      };
    } catch (error) {
      return this.#answer(head, undefined, invalidTarget(error));
    }
    const destination = this.#destination(head, canonical);
    if ("status" in destination) return this.#answer(head, canonical, destination);

    if (this.#client.now() - this.#idleSince > REIDENTIFY_IDLE_MS) {
      const failure = await this.#flow.reidentify();
      if (failure !== undefined) return this.#answer(head, canonical, unidentified(failure, head.method, destination));
    }
    const target = this.#targetFor(destination);
    const owners = this.#flow.owners;
    let generation: Generation;
    do {
      generation = context.generations.current;
      const authorised = target.authorise(generation, owners);
      const refusal = authorised instanceof Promise ? await authorised : authorised;
      if (refusal !== undefined && generation === context.generations.current) {
        const path = generation.credentials.redact(canonical.path);
        return this.#answer(head, canonical, refused(refusal, head.method, destination, path));
      }
    } while (generation !== context.generations.current);
    context.skipped.tell(generation.policy, target, owners);

    const upgrade = upgradeRefused(head, destination, target.policy);
    if (upgrade !== undefined) return this.#answer(head, canonical, upgrade);
    const decision = this.#decide(generation, target, query);
    if (!decision.allowed)
      return this.#answer(head, canonical, this.#denied(generation, head, canonical, destination, decision));
    return this.#forward(head, canonical, query, destination, target, generation, decision);
  }

  async #forward(
    head: RequestHead,
    canonical: CanonicalTarget,
    query: RequestQuery,
    destination: Authority,
    target: Target,
    generation: Generation,
    decision: RequestAllowed,
  ): Promise<Next> {
    const secure = this.#options.scheme === "https";
    const endpoint: CredentialEndpoint = {
      host: destination.host,
      port: destination.port,
      secure,
      allowUninspected: target.access.allowUninspectedCredentials,
      provider: decision.credentialProvider,
      path: canonical.path,
    };
    const credentials = generation.credentials.rewrite({ ...endpoint, query: canonical.query, fields: head.fields });
    const injected = credentials.kind === "injected" ? credentials : undefined;
    if (credentials.kind === "denied") {
      if (credentials.code === "credential_endpoint_mismatch")
        this.#find("credentialElsewhere", destination, decision.policy);
      const { status, message, next } = credentials;
      // The reference names a credential that cannot be resolved differently on its explicit plain connections.
      const forward = this.#options.target === undefined && credentials.code === "credential_unavailable";
      const code = forward ? "credential_injection_failed" : credentials.code;
      return this.#answer(head, canonical, credentialRefused(status, code, message, next, decision.policy));
    }
    if (injected !== undefined && head.method.toUpperCase() === "TRACE") {
      return this.#answer(head, canonical, traceRefused(decision.policy));
    }
    const path = generation.credentials.redact(canonical.path);
    const active: Active = {
      target,
      query,
      fixed: { method: head.method, host: destination.host, port: destination.port, path },
      credential: injected === undefined ? undefined : { identity: injected.identity, endpoint },
      upstream: undefined,
      ended: false,
    };
    const outgoing: Outgoing = {
      head,
      fields: injected?.fields ?? head.fields,
      path: injected?.path ?? canonical.path,
      query: injected === undefined ? canonical.query : injected.query,
      destination,
      addresses: target.addresses,
      tls: secure ? generation.network.upstreamTls : undefined,
      used: injected?.used ?? [],
      scanBody: credentials.scanBody,
      credential: injected?.identity ?? "",
      via: this.#options.target === undefined,
    };
    this.#active = active;
    try {
      const result = await exchange(this.#context.pool, this.#client, outgoing, {
        onUpstream: (upstream) => {
          active.upstream = upstream;
          if (active.ended) upstream?.channel.destroy(true);
        },
        onResponse: (status) =>
          this.#report(generation, active.fixed, {
            outcome: decision.audited ? "audited" : "allowed",
            policy: decision.policy,
            engine: "l7",
            code: "",
            reason: decision.reason,
            next: "",
            status,
          }),
        onLeak: () => this.#find("credentialReturned", destination, decision.policy),
        onMarker: () => this.#find("placeholderInBody", destination, decision.policy),
      });
      if (active.ended) return "broken";
      if (result.kind === "rejected") return await this.#rejected(head, canonical, decision.policy, result.error);
      if (result.kind !== "unanswered") return result.kind;
      if (this.#client.closed) return "broken";
      const answer = unreachable(result.error, destination, decision.policy);
      return await this.#answer(head, canonical, answer, result.bodyDone ? "read" : "unread");
    } finally {
      this.#active = undefined;
      this.#idleSince = this.#client.now();
    }
  }

  /** Every owner's grant must allow; the decision of the first one is reported. */
  #decide(generation: Generation, target: Target, query: RequestQuery): RequestAllowed | RequestDenied {
    const { grants } = target.access;
    const first = generation.policy.request(grants[0]!.grant, query);
    if (!first.allowed) return first;
    for (let i = 1; i < grants.length; i += 1) {
      const other = generation.policy.request(grants[i]!.grant, query);
      if (!other.allowed) return other;
    }
    return first;
  }

  /** The credential of a request under way may no longer be used, by itself or by what the endpoint now binds and accepts. */
  #isRevoked(next: Generation, { credential, target }: Active, decision: RequestAllowed): boolean {
    if (credential === undefined) return false;
    const { allowUninspectedCredentials: allowUninspected } = target.access;
    const endpoint = { ...credential.endpoint, allowUninspected, provider: decision.credentialProvider };
    return !next.credentials.allows(credential.identity, endpoint);
  }

  #targetFor(destination: Authority): Target {
    const last = this.#lastTarget;
    if (last !== undefined && last.host === destination.host && last.port === destination.port) return last;
    const target = new Target(destination.host, destination.port);
    this.#lastTarget = target;
    return target;
  }

  /** Where the request goes; on a connection with a destination of its own, request and connection must agree. */
  #destination(head: RequestHead, canonical: CanonicalTarget): Authority | Answer {
    const { scheme, target } = this.#options;
    const defaultPort = scheme === "https" ? 443 : 80;
    if (target === undefined) {
      if (canonical.scheme === undefined) {
        return invalid(
          "invalid_proxy_request",
          "This is a proxy: the request target must be an absolute URI",
          "Use http://host/path as the target, or CONNECT.",
        );
      }
      if (canonical.scheme === "https") {
        return invalid("use_connect", "Use CONNECT for HTTPS URLs", "Let the client tunnel https through the proxy.");
      }
      // The Host field is written anew from the URI (RFC 9112 §3.2.2), so it cannot disagree upstream.
      return canonical.authority!;
    }
    const expected: Authority = { host: target.host, port: target.port };
    if (head.host === undefined && canonical.authority === undefined) return expected;
    const named = head.host === undefined ? undefined : parseAuthority(head.host, defaultPort);
    const agree =
      (head.host === undefined || sameAuthority(named, expected)) &&
      (canonical.authority === undefined ||
        (canonical.scheme === scheme && sameAuthority(canonical.authority, expected)));
    if (agree) return expected;
    this.#find("authorityMismatch", expected, target.policy);
    return authorityMismatch(expected, target.policy);
  }

  #denied(
    generation: Generation,
    head: RequestHead,
    canonical: CanonicalTarget,
    destination: Authority,
    decision: RequestDenied,
  ): Answer {
    if (decision.code === "encoded_slash" && this.#options.target === undefined) {
      return invalid("invalid_request_target", decision.reason, decision.next, decision.policy);
    }
    const path = generation.credentials.redact(canonical.path);
    const binary = this.#flow.owners[0]?.process.exe;
    return notPermitted(decision, { method: head.method, path, binary }, destination);
  }

  /** The client's body broke a rule while it was being passed on. */
  async #rejected(head: RequestHead, canonical: CanonicalTarget, policy: string, error: unknown): Promise<Next> {
    if (!(error instanceof RuntimeError)) return this.#unparsable(error);
    if (error.code !== "credential_placeholder_in_request_body") return "broken";
    const { code, message, next } = error;
    return this.#answer(head, canonical, credentialRefused(403, code, message, next, policy, false), "unread");
  }

  /** Tells the client, reports it, and says whether the connection can go on. */
  async #answer(
    head: RequestHead,
    canonical: CanonicalTarget | undefined,
    answer: Answer,
    body: "untouched" | "read" | "unread" = "untouched",
  ): Promise<Next> {
    const client = this.#client;
    const { framing } = head;
    const drainable =
      framing.kind === "none" ||
      (framing.kind === "length" && framing.length <= DRAIN_BODY_BYTES && !head.fields.has("expect"));
    const keep = answer.keep && head.keepAlive && (body === "read" || (body === "untouched" && drainable));
    const generation = this.#context.generations.current;
    const target = this.#options.target;
    this.#report(
      generation,
      {
        method: head.method,
        host: target?.host ?? canonical?.authority?.host ?? "",
        port: target?.port ?? canonical?.authority?.port ?? 0,
        path: canonical === undefined ? "/[INVALID_REQUEST_TARGET]" : generation.credentials.redact(canonical.path),
      },
      {
        outcome: answer.engine === "upstream" ? "failed" : "denied",
        policy: answer.policy,
        engine: answer.engine,
        code: answer.code,
        reason: answer.reason,
        next: answer.next,
        status: answer.status,
      },
    );
    try {
      const bytes = formatError(answer.status, answer.body, {
        keep,
        policy: answer.policy,
        head: head.method === "HEAD",
      });
      const wait = client.write(bytes, BODY_IDLE_MS);
      if (wait !== undefined) await wait;
      if (!keep) return body === "read" || framing.kind === "none" ? "close" : "linger";
      if (body === "untouched") {
        const rest = openBody(client, framing);
        while ((await rest.next(HEAD_MS)) !== null);
      }
      this.#idleSince = client.now();
      return "keep";
    } catch {
      return "broken";
    }
  }

  async #unparsable(error: unknown): Promise<Next> {
    const client = this.#client;
    const target = this.#options.target;
    if (!(error instanceof HttpParseError)) {
      // A connection that broke is nobody's mistake; anything else is ours and must be seen.
      if (!(error instanceof RuntimeError)) this.#context.onError(error);
      return "broken";
    }
    this.#report(
      this.#context.generations.current,
      { method: "-", host: target?.host ?? "", port: target?.port ?? 0, path: "/[INVALID_REQUEST]" },
      {
        outcome: "denied",
        policy: target?.policy ?? "",
        engine: "http-parser",
        code: `http_${error.rule}`,
        reason: `HTTP request rejected before policy evaluation: ${error.message}`,
        next: "Send well-formed HTTP/1.1.",
        status: 400,
      },
    );
    if (client.closed) return "broken";
    try {
      const status = error.rule === "head_size" ? 431 : 400;
      const wait = client.write(
        formatError(status, { error: "invalid_request", detail: error.message, next: "Send well-formed HTTP/1.1." }),
        HEAD_MS,
      );
      if (wait !== undefined) await wait;
      return "linger";
    } catch {
      return "broken";
    }
  }

  #report(
    generation: Generation,
    fixed: Active["fixed"],
    rest: Pick<RequestEvent, "outcome" | "policy" | "engine" | "code" | "reason" | "next" | "status">,
  ): void {
    const { method, host, port, path } = fixed;
    const judged = rest.engine === "l7" && rest.reason !== "" && rest.outcome !== "allowed";
    const verb = rest.outcome === "audited" ? "audit" : "deny";
    const reason = judged ? `L7_REQUEST ${verb} ${method} ${host}:${port}${path} reason=${rest.reason}` : rest.reason;
    this.#context.events.request({
      ...rest,
      reason,
      ...fixed,
      origin: this.#flow.origin,
      scheme: this.#options.scheme,
      owners: this.#flow.owners,
      generation: generation.number,
    });
  }

  #find(kind: Parameters<typeof finding>[0], destination: Authority, policy: string): void {
    this.#context.events.finding(finding(kind, destination, this.#flow.owners, policy));
  }
}

function sameAuthority(a: Authority | undefined, b: Authority): boolean {
  return a !== undefined && a.host === b.host && a.port === b.port;
}
