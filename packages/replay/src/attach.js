// How a session comes around a client: a second instance of the client's own class, with one way out.
//
// Everything a client does goes through `request`, or past it through `makeRequest`; everything ends in `fetch`. The
// first is where calls are judged, the last is where nothing unjudged gets through: it lets pass what the list of
// endpoints knows as harmless, and a judged request only with a ticket whose planned body it carries.
"use strict";

const { AsyncLocalStorage } = require("node:async_hooks");
const { classify } = require("./core.js");
const { hideKey, isTokenExchange } = require("./credentials.js");
const { ReplayConfigError, ReplayError, makeError } = require("./errors.js");
const { invalid } = require("./options.js");
const { run } = require("./pipeline.js");
const { answerOf, handed, readBody, readsItself, refusal, unread } = require("./reply.js");

const tickets = new AsyncLocalStorage();
/** Addresses whose kind is kept. */
const KINDS_MAX = 256;

/** Inside a request of ours, but without a judged call: the client may read its own key. */
const OPEN = Object.freeze({});

/** Clients that have a session, across copies of this package. */
const ATTACHED = Symbol.for("@reprise/replay.attached");
const attached = (globalThis[ATTACHED] ??= new WeakMap());

/** Says whose client this is. */
function providerOf(client) {
  const has = (value, ...path) => typeof path.reduce((at, name) => at?.[name], value) === "function";
  if (client !== null && typeof client === "object" && has(client, "withOptions")) {
    if (has(client, "chat", "completions", "create")) return "openai";
    if (!client.chat && has(client, "messages", "create")) return "anthropic";
  }
  throw invalid(["the client is neither an OpenAI nor an Anthropic client"]);
}

/** Puts a session around a client. Returns the governed instance and the pipeline as a `fetch`. */
function attach(client, session) {
  const provider = providerOf(client);
  if (attached.has(client)) {
    const message = "the client already has a session or an observer";
    throw new ReplayConfigError(message, { condition: "compilation_failed", findings: [message] });
  }
  if (typeof client.backendMiddleware === "function" && client.backendMiddleware().length > 0) {
    throw invalid([`\`${client.constructor.name}\` rewrites its requests for another platform after they are judged: it cannot be governed`]);
  }
  const scope = { session, provider, Base: baseError(client) };
  const original = client.fetch;
  const inner = (...values) => (original ?? globalThis.fetch)(...values);
  const clone = cloned(scope, client, Object.getPrototypeOf(client), {}, inner);
  attached.set(client, session.id);
  const unwatch = watch(scope, client, original);
  session.endings.push(() => {
    unwatch();
    attached.delete(client);
  });
  return { client: clone, fetch: governedFetch(scope, clone, inner) };
}

/** Makes a governed instance: of the original, or of one that is already governed. */
function cloned(scope, from, prototype, options, inner) {
  const place = {};
  let clone;
  try {
    const guarding = guard(scope, place, inner);
    clone = tickets.run(OPEN, () => prototype.withOptions.call(from, { ...forgotten(from), ...options, fetch: guarding }));
    if (clone === from) throw new Error("its `withOptions` returns the client itself");
    if (typeof clone?.request !== "function" || typeof clone.makeRequest !== "function") {
      throw new Error("its instances have no `request`");
    }
    if (clone.fetch !== guarding) throw new Error("its class puts a `fetch` of its own in the place of the one that it is given");
  } catch (error) {
    throw invalid([`the client cannot be copied with another \`fetch\`: ${error.message}`]);
  }
  place.client = clone;
  const APIPromise = promiseClass(clone);
  const own = (name, value) => Object.defineProperty(clone, name, { value, configurable: true, writable: true, enumerable: false });
  place.writesBody = canWriteBody(prototype);
  if (place.writesBody) {
    own("buildBody", (given) => {
      const ticket = tickets.getStore();
      const isOurs = ticket?.writes === true && ticket.isOpen && given.options.body === ticket.body;
      if (!isOurs) return prototype.buildBody.call(clone, given);
      return { bodyHeaders: { "content-type": "application/json" }, body: ticket.planned, isStreamingBody: false };
    });
  }
  own("makeRequest", (...values) => inTicket(() => prototype.makeRequest.apply(clone, values)));
  own("request", (request, retries) => {
    const answer = governedRequest(scope, place, prototype, Promise.resolve(request), retries);
    return handing(new APIPromise(clone, answer));
  });
  own("withOptions", (next = {}) => {
    const { fetch = inner, ...rest } = next;
    return cloned(scope, clone, prototype, rest, (...values) => fetch(...values));
  });
  attached.set(clone, scope.session.id);
  hideKey(scope, clone, () => tickets.getStore() !== undefined || !scope.session.enforces);
  keepConversationsHere(scope, clone);
  return clone;
}

/** Makes a promise of the client hand out responses that read as any other, and so the ones that its helpers make of it. */
function handing(promise) {
  const own = (name, value) => Object.defineProperty(promise, name, { value, configurable: true, writable: true, enumerable: false });
  const { asResponse, _thenUnwrap } = promise;
  own("asResponse", async () => {
    const response = await asResponse.call(promise);
    // Of a response that the client reads itself nobody else reads the body.
    return promise.parsedPromise === undefined ? handed(response) : response;
  });
  if (typeof _thenUnwrap === "function") own("_thenUnwrap", (...values) => handing(_thenUnwrap.apply(promise, values)));
  return promise;
}

/** What copies of a client do not keep by themselves: those of an Azure client in `openai` 5 and 6. */
function forgotten({ apiVersion, deploymentName }) {
  return typeof apiVersion === "string" ? { apiVersion, deployment: deploymentName } : {};
}

/**
 * Newer tool runners of Anthropic leave the conversation with the provider, where nobody can see what a request
 * continues. They can also send it whole: that is what they do under a session, unless the caller says otherwise.
 */
function keepConversationsHere({ session }, clone) {
  const messages = clone.beta?.messages;
  if (typeof messages?.toolRunner !== "function" || typeof messages.thread !== "function") return;
  const { toolRunner } = Object.getPrototypeOf(messages);
  const value = (params, ...rest) => toolRunner.call(messages, session.enforces ? { thread: false, ...params } : params, ...rest);
  Object.defineProperty(messages, "toolRunner", { value, configurable: true, writable: true, enumerable: false });
}

function inTicket(act) {
  return tickets.getStore() === undefined ? tickets.run(OPEN, act) : act();
}

/** The class of what the client's methods return; it wraps a promise of a response. Sends nothing. */
function promiseClass(clone) {
  const made = Object.getPrototypeOf(clone).request.call(clone, new Promise(() => {}));
  if (!(made instanceof Promise) || typeof made.responsePromise?.then !== "function") {
    throw invalid(["the client's methods return something that this package does not know"]);
  }
  return made.constructor;
}

/** The base error of the client's library: the last class before `Error`. */
function baseError(client) {
  let made;
  try {
    made = client.makeStatusError(403, {}, "", new Headers());
  } catch {
    return undefined;
  }
  let base;
  for (let at = Object.getPrototypeOf(made); at && at.constructor !== Error && at !== Object.prototype; at = Object.getPrototypeOf(at)) {
    base = at.constructor;
  }
  return base;
}

/** What a client's `request` returns, as the client's own promise of a response. */
async function governedRequest(scope, place, prototype, optionsPromise, retries) {
  const { session, Base } = scope;
  const options = await optionsPromise;
  const ended = session.check(Base);
  if (ended) throw await later(ended);
  const { client } = place;
  const method = String(options.method ?? "get").toUpperCase();
  const kind = kindOf(scope, client, method, String(options.path));
  const pass = () => passed(scope, () => prototype.request.call(client, options, retries).responsePromise);
  if (kind === "passed") return pass();
  const text = kind === "refused" ? null : textOfBody(options.body);
  const unjudged = kind === "refused" ? `${method} ${options.path}` : (replacement(options) ?? (text === null ? "body" : null));
  if (unjudged !== null) {
    if (await enforces(session)) throw await later(unsupported(scope, unjudged));
    noteUnjudged(scope, unjudged);
    return pass();
  }
  let last;
  const send = async (planned) => {
    const ticket = ticketFor(scope, place, { wire: kind, options, text, planned });
    const stop = () => ticket.attempt?.abort();
    session.underWay.add(stop);
    // Libraries join a signal that they are given to their own by weak references, and everything these reach stays until the
    // next full collection. So they get one only where the caller gave one; the end of the session goes by the guard.
    const caller = options.signal ? followTogether(options.signal) : null;
    const given = { ...options, body: ticket.body, ...(caller && { signal: caller.controller.signal }) };
    try {
      last = await tickets.run(ticket, () => prototype.request.call(client, given, retries).responsePromise);
      const isSse = Boolean(options.stream) || /text\/event-stream/i.test(last.response.headers.get("content-type") ?? "");
      // What the guard read is what was answered only if nothing stood between the guard and here.
      const isRead = last.response === ticket.response;
      const read = isRead ? ticket.read : await readBody(last.response, ticket.attempt?.signal, !session.enforces);
      return { ...read, isSse, isUnread: isRead };
    } catch (error) {
      if (ticket.refused) throw ticket.refused;
      if (options.signal?.aborted) throw abortError(client);
      throw last && error instanceof TypeError ? connectionError(client, error) : error;
    } finally {
      close(ticket);
      session.underWay.delete(stop);
      // A stream still belongs to the signal of its caller.
      if (!options.stream) caller?.release();
    }
  };
  const aborted = () => abortError(client);
  const tools = options.body?.tools;
  const reply = await run(session, { wire: kind, text, tools, signal: options.signal, send, Base, aborted });
  const { bytes, read = bytes } = reply;
  const isUntouched = bytes === read || Buffer.compare(bytes, read) === 0;
  const response = released(last, reply, isUntouched);
  if (reply.failed !== undefined) throw await providerError(client, prototype, { ...last, response }, reply);
  return { ...last, response };
}

/** A controller whose signal follows another one, which may live long: `release` lets go of it. */
function follow(signal) {
  const controller = new AbortController();
  const abort = () => controller.abort(signal.reason);
  if (signal?.aborted) abort();
  else signal?.addEventListener("abort", abort, { once: true });
  return { controller, release: () => signal?.removeEventListener("abort", abort) };
}

/** Who follows the signal of a caller. */
const followers = new WeakMap();

/** The same with one listener for all requests that are under way with a signal: Node warns of a signal that has many. */
function followTogether(signal) {
  if (signal.aborted) return follow(signal);
  const controller = new AbortController();
  let together = followers.get(signal);
  if (together === undefined) {
    const controllers = new Set();
    const abort = () => [...controllers].forEach((one) => one.abort(signal.reason));
    together = { controllers, abort };
    followers.set(signal, together);
    signal.addEventListener("abort", abort, { once: true });
  }
  const { controllers, abort } = together;
  controllers.add(controller);
  const release = () => {
    controllers.delete(controller);
    if (controllers.size > 0 || followers.get(signal) !== together) return;
    followers.delete(signal);
    signal.removeEventListener("abort", abort);
  };
  return { controller, release };
}

/** What the caller gets of a response: itself, or another with what is left of it. */
function released({ response, controller }, { bytes, broken, isUnread, isSse }, isUntouched) {
  const signal = isSse ? controller?.signal : undefined;
  if (broken !== undefined) return isUnread ? response : answerOf(response, bytes, signal, broken);
  if (!isUntouched) return answerOf(response, bytes, signal);
  // Middleware may have put readers of its own on a response that the guard has read.
  return isUnread && !readsItself(response) ? response : unread(response, bytes, signal);
}

/**
 * Leave to send one request. `planned` is the caller's own text, which goes out as it is, or other bytes. `expected` is what the
 * client must send; where it lets us write the body (`buildBody`), nothing is parsed and written again.
 */
function ticketFor({ session }, { writesBody }, { wire, options, text, planned }) {
  const body = planned === text ? text : Buffer.from(planned).toString("utf8");
  const ticket = { wire, session, attempt: null, planned: body, expected: body, body: options.body, writes: false, isOpen: true, refused: null, isStream: Boolean(options.stream) };
  if (typeof options.body === "string") ticket.body = body;
  else if (writesBody && isJson(options)) ticket.writes = true;
  else if (body !== text) {
    ticket.body = JSON.parse(body);
    ticket.expected = JSON.stringify(ticket.body);
  }
  return ticket;
}

/**
 * Ends the leave to send. Every promise that was made under a ticket keeps it, some of them until the next full collection: it
 * lets go of the request.
 */
function close(ticket) {
  ticket.isOpen = false;
  for (const name of ["planned", "expected", "body", "read", "response", "attempt"]) ticket[name] = null;
}

/** Says whether a body is sent as JSON, and as the stream that its options say. */
function isJson({ body, headers, stream }) {
  if (Boolean(stream) !== (body.stream === true)) return false;
  if (headers === undefined || headers === null) return true;
  const names = Object.getPrototypeOf(headers) === Object.prototype ? Object.keys(headers) : null;
  return names !== null && !names.some((name) => name.toLowerCase() === "content-type");
}

/**
 * Says whether a client's bodies can be written by us: it has one method for it, and no subclass has a hand in requests that
 * would not be seen.
 */
function canWriteBody(prototype) {
  let owner = prototype;
  while (owner && !Object.hasOwn(owner, "buildBody")) owner = Object.getPrototypeOf(owner);
  return owner !== null && ["buildRequest", "prepareOptions", "prepareRequest"].every((name) => prototype[name] === owner[name]);
}

/** A refusal takes a turn of the event loop, as a request would: helpers that try for ever must not stop the process. */
function later(value) {
  return new Promise((resolve) => setImmediate(resolve, value));
}

/** Sends what is not judged. The end of the session ends it too. */
function passed({ session, Base }, send) {
  return session.whileOpen(() => inTicket(send), Base);
}

/** The option that would replace what is judged, if there is one. */
function replacement({ fetchOptions }) {
  const name = ["body", "method"].find((name) => fetchOptions?.[name] !== undefined);
  return name && `fetchOptions.${name}`;
}

/** Says whether a session blocks anything. Rules that come from elsewhere say so themselves. */
async function enforces(session) {
  await session.plan?.attach();
  return session.enforces;
}

/** Where nothing is blocked, what cannot be judged goes out as it is, and is told. */
function noteUnjudged({ session }, member) {
  session.diagnose("violation", { member });
}

/** The text of a body, which is what is judged; null if it is no JSON. */
function textOfBody(body) {
  if (typeof body === "string") return body;
  const isPlain = body !== null && typeof body === "object" && !ArrayBuffer.isView(body) && !(body instanceof ArrayBuffer);
  const isData = isPlain && !(Symbol.asyncIterator in body) && !(body instanceof FormData) && !(body instanceof Blob) && !(body instanceof URLSearchParams);
  // A `toJSON` may return what JSON does not have.
  return (isData && JSON.stringify(body)) || null;
}

/** A `fetch` through which nothing unjudged gets. */
function guard(scope, place, inner) {
  return async (url, init = {}) => {
    const { session } = scope;
    if (session.over !== null) return later(refusal(session.check()));
    const address = typeof url === "string" ? url : (url.href ?? url.url);
    const method = String(init.method ?? url.method ?? "GET").toUpperCase();
    const kind = /^https?:/i.test(address) ? kindOf(scope, place.client, method, address) : "refused";
    if (kind === "passed") return untilEnd(session, inner, url, init);
    if (kind === "refused" && isTokenExchange(scope, place.client, method, address)) return inner(url, init);
    const ticket = tickets.getStore();
    if (kind === "refused" || ticket?.isOpen !== true || ticket.wire !== kind || ticket.session !== session) {
      const member = `${method} ${URL.canParse(address) ? new URL(address).pathname : address}`;
      if (!session.enforces) {
        // What came through `request` is noted there.
        if (ticket !== OPEN) noteUnjudged(scope, member);
        return untilEnd(session, inner, url, init);
      }
      const error = unsupported(scope, member);
      if (ticket?.isOpen) ticket.refused ??= error;
      return later(refusal(error));
    }
    const isOther = textOf(init.body) !== ticket.expected;
    if (isOther && session.enforces) {
      ticket.refused ??= unsupported(scope, "body");
      return refusal(ticket.refused);
    }
    if (isOther) noteUnjudged(scope, "body");
    try {
      const body = isOther || ticket.planned === ticket.expected ? init.body : ticket.planned;
      ticket.attempt = follow(init.signal).controller;
      const response = await inner(url, { ...init, body, signal: ticket.attempt.signal });
      // Where the client's own time limit covers the body, the body is read under it.
      if (!response.ok || !("parseResponseWithTimeout" in place.client) || ticket.isStream) return response;
      const read = await readBody(response, undefined, !session.enforces);
      ticket.read = read;
      ticket.response = read.broken === undefined ? unread(response, read.bytes) : answerOf(response, read.bytes, undefined, read.broken);
      return ticket.response;
    } catch (error) {
      // A client tries again what broke off, but not a refusal.
      if (session.over !== null) return refusal(session.check());
      throw error;
    }
  };
}

/** Sends what is not judged, and breaks off with the end of the session. A response that has begun is not touched. */
async function untilEnd(session, inner, target, init, signal = init.signal) {
  const { controller } = follow(signal);
  const stop = () => controller.abort();
  session.underWay.add(stop);
  try {
    return await inner(target, { ...init, signal: controller.signal });
  } catch (error) {
    if (session.over !== null) return refusal(session.check());
    throw error;
  } finally {
    session.underWay.delete(stop);
  }
}

function textOf(body) {
  if (typeof body === "string") return body;
  if (ArrayBuffer.isView(body)) return Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString("utf8");
  return body instanceof ArrayBuffer ? Buffer.from(body).toString("utf8") : null;
}

/** What happens to a request of a client, by its address. The few addresses of a client are looked up once. */
function kindOf(scope, client, method, address) {
  const known = (scope.kinds ??= new Map());
  const key = `${method} ${client.baseURL} ${address}`;
  let kind = known.get(key);
  if (kind === undefined) {
    kind = lookUp(scope, client, method, address);
    if (known.size >= KINDS_MAX) known.clear();
    known.set(key, kind);
  }
  return kind;
}

function lookUp({ provider }, client, method, address) {
  let path = address;
  if (/^[a-z][a-z0-9+.-]*:/i.test(address)) {
    const base = new URL(client.baseURL);
    const target = new URL(address);
    if (target.origin !== base.origin) return "refused";
    const prefix = base.pathname.replace(/\/+$/, "");
    path = target.pathname.startsWith(`${prefix}/`) ? target.pathname.slice(prefix.length) : target.pathname;
  }
  // Azure names the deployment before the endpoint.
  if (provider === "openai") path = path.replace(/^\/deployments\/[^/%?#]+(?=\/)/, "");
  return classify(provider, method, path);
}

/** Watches the original: a judged request that it sends itself goes around the session. It is not held up. */
function watch(scope, client, original) {
  if (typeof original !== "function") return () => {};
  const watching = function (url, init) {
    try {
      const address = typeof url === "string" || url instanceof URL ? String(url) : url.url;
      const method = String(init?.method ?? "GET").toUpperCase();
      const kind = kindOf(scope, client, method, address);
      if (kind !== "passed" && kind !== "refused") scope.session.bypassed(new URL(address).pathname);
    } catch {
      // Watching never changes what is watched.
    }
    return original.apply(this, arguments);
  };
  try {
    client.fetch = watching;
  } catch {
    scope.session.diagnose("bypass_detection_off");
    return () => {};
  }
  return () => {
    if (client.fetch === watching) client.fetch = original;
  };
}

/** The pipeline as a `fetch`, for frameworks that build a client of their own. Blocks are responses with status 403. */
function governedFetch(scope, clone, inner) {
  return async (input, init = {}) => {
    const { session } = scope;
    const request = new Request(input, init);
    const kind = kindOf(scope, clone, request.method, request.url);
    const ended = session.check();
    if (ended) return refusal(ended);
    const { signal } = request;
    const member = `${request.method} ${new URL(request.url).pathname}`;
    if (kind === "refused") {
      const error = await enforces(session).then((isRefused) => (isRefused ? unsupported(scope, member) : null), (error) => error);
      if (error) return refusal(error);
      noteUnjudged(scope, member);
    }
    if (kind === "passed" || kind === "refused") {
      // The body of a request object can be read once, and it has been taken over.
      return input instanceof Request ? untilEnd(session, inner, request, {}, signal) : untilEnd(session, inner, input, init, signal);
    }
    let last;
    let failed;
    let given;
    let text;
    const send = async (planned) => {
      const headers = new Headers(request.headers);
      headers.delete("content-length");
      // Where nothing is blocked, what is no text goes out all the same, byte for byte.
      const isUntouched = planned === text && !session.enforces && !Buffer.from(text).equals(given);
      const body = isUntouched ? given : typeof planned === "string" ? planned : Buffer.from(planned).toString("utf8");
      const { controller, release } = follow(signal);
      const stop = () => controller.abort();
      session.underWay.add(stop);
      try {
        last = await inner(request.url, { ...init, method: "POST", headers, body, redirect: request.redirect, signal: controller.signal });
        if (!last.ok) {
          failed = last;
          throw new Error(`the provider answered with status ${last.status}`);
        }
        const isSse = /text\/event-stream/i.test(last.headers.get("content-type") ?? "");
        return { ...(await readBody(last, controller.signal, !session.enforces)), isSse };
      } finally {
        session.underWay.delete(stop);
        release();
      }
    };
    const aborted = () => signal.reason;
    try {
      given = Buffer.from(await request.arrayBuffer());
      text = given.toString("utf8");
      const tools = toolsOf(text);
      const reply = await run(session, { wire: kind, text, tools, signal, send, aborted });
      if (reply.failed !== undefined) throw new TypeError(`the provider failed: ${reply.failed}`);
      return answerOf(last, reply.bytes, reply.isSse ? signal : undefined, reply.broken);
    } catch (error) {
      if (error instanceof ReplayError) return refusal(error);
      if (failed !== undefined) return failed;
      throw error;
    }
  };
}

function toolsOf(text) {
  try {
    return JSON.parse(text).tools;
  } catch {
    return undefined;
  }
}

function unsupported({ session, Base }, member) {
  const message = `\`${member}\` cannot be judged`;
  return makeError("ReplayUnsupportedError", message, { member, sessionId: session.id }, Base);
}

function abortError(client) {
  const Known = client.constructor.APIUserAbortError;
  return typeof Known === "function" ? new Known() : new DOMException("This operation was aborted", "AbortError");
}

function connectionError(client, cause, message = "the response broke off") {
  const Known = client.constructor.APIConnectionError;
  return typeof Known === "function" ? new Known({ message, cause }) : cause;
}

/** The error that the client itself would have raised over an answer that is none. */
async function providerError(client, prototype, props, reply) {
  try {
    const read = Reflect.construct(promiseClassOf(client), [client, Promise.resolve(props)]);
    const value = await read;
    if (typeof value?.[Symbol.asyncIterator] === "function") for await (const _ of value);
  } catch (error) {
    return error;
  }
  const message = `the provider failed: ${reply.failed}`;
  return connectionError(client, new TypeError(message), message);
}

function promiseClassOf(client) {
  return Object.getPrototypeOf(client).request.call(client, new Promise(() => {})).constructor;
}

module.exports = { attach };
