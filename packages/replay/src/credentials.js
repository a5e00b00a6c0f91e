// The credentials of a governed client: its key is not handed out, and the requests that bring it a token pass.
"use strict";

const { makeError } = require("./errors.js");

const TOKEN_PATH = /\/oauth\/token$/;

/**
 * WebSocket classes take the key from the client and never use `fetch`: outside of requests it is not handed out, neither by the
 * client nor by the options that it keeps for its copies. `mayRead` says whether a request is under way.
 */
function hideKey({ session, provider, Base }, clone, mayRead) {
  if (provider !== "openai") return;
  const hide = (owner) => {
    let key = owner.apiKey;
    Object.defineProperty(owner, "apiKey", {
      configurable: true,
      // Where nothing is blocked, a copy of its members is the same as without a session.
      enumerable: !session.enforces,
      get() {
        if (mayRead()) return key;
        const message = "the key of a governed client is not handed out: connections around `fetch` cannot be judged";
        throw makeError("ReplayUnsupportedError", message, { member: "apiKey", sessionId: session.id }, Base);
      },
      set(value) {
        key = value;
      },
    });
  };
  hide(clone);
  const kept = Object.getOwnPropertyDescriptor(clone, "_options");
  if (kept?.value === null || typeof kept?.value !== "object") return;
  const options = { ...kept.value };
  hide(options);
  Object.defineProperty(clone, "_options", { ...kept, value: options });
}

/** Says whether a request is the one by which a client gets its own token. No such address is one of a model. */
function isTokenExchange({ provider }, client, method, address) {
  if (method !== "POST" || !URL.canParse(address)) return false;
  const { origin, pathname, search } = new URL(address);
  if (!TOKEN_PATH.test(pathname) || search !== "") return false;
  if (provider === "openai") return client._workloadIdentityAuth?.tokenExchangeUrl === address;
  const bases = [client.baseURL, client._authState?.baseURL].filter((base) => typeof base === "string" && URL.canParse(base));
  return pathname === "/v1/oauth/token" && bases.some((base) => new URL(base).origin === origin);
}

module.exports = { hideKey, isTokenExchange };
