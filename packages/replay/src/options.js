// The options of a session: checked at once, all findings together, before anything is attached.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const { ReplayConfigError } = require("./errors.js");

/** Options that the core reads as they are. */
const CORE = [
  "agent",
  "mode",
  "gate",
  "onError",
  "unmatchedPolicy",
  "compatEnforcement",
  "maxRetries",
  "maxUnguardedCalls",
  "narrowingFeedback",
  "providerConstraints",
  "captureLevel",
  "labels",
  "pricing",
];
const CALLBACKS = ["onBlock", "onNarrow", "diagnostics", "onCheckpoint"];
const OTHERS = [
  "contracts",
  "contractsDir",
  "sessionYamlPath",
  "workflowYamlPath",
  "sessionId",
  "principal",
  "tools",
  "apiKey",
  "runtimeUrl",
  "environment",
  "store",
  "workflow",
];
const KNOWN = new Set([...CORE, ...CALLBACKS, ...OTHERS]);
const STORE = ["append", "read", "head", "putBlob", "getBlob"];

/** Reads options. Returns what the core is opened with and what the session keeps for itself. */
function readOptions(given) {
  const findings = [];
  if (given === null || typeof given !== "object") throw invalid(["options are an object"]);
  for (const name of Object.keys(given)) {
    if (!KNOWN.has(name)) findings.push(`\`${name}\`: no option of this name`);
  }
  const core = {};
  for (const name of CORE) {
    if (given[name] === undefined) continue;
    const wrong = notJson(given[name]);
    if (wrong) findings.push(`\`${name}\`: ${wrong}`);
    else core[name] = given[name];
  }
  for (const name of CALLBACKS) {
    if (given[name] !== undefined && typeof given[name] !== "function") findings.push(`\`${name}\`: a function`);
  }
  core.sessionId = given.sessionId ?? `rs_${globalThis.crypto.randomUUID()}`;
  if (typeof core.sessionId !== "string" || !/^[A-Za-z0-9._:-]{1,128}$/.test(core.sessionId)) {
    findings.push("`sessionId`: 1 to 128 of letters, digits, `.`, `_`, `:`, `-`");
  }
  if (given.principal !== undefined) {
    const wrong = notJson(given.principal);
    if (wrong) findings.push(`\`principal\`: ${wrong}`);
    else core.principal = given.principal;
  }
  if (given.tools !== undefined) {
    const isMap = given.tools !== null && typeof given.tools === "object";
    const wrong = isMap ? Object.keys(given.tools).filter((name) => typeof given.tools[name] !== "function") : [];
    if (!isMap) findings.push("`tools`: executors by name");
    for (const name of wrong) findings.push(`\`tools.${name}\`: a function`);
    if (isMap) core.tools = Object.keys(given.tools);
  }
  for (const name of ["contractsDir", "sessionYamlPath", "workflowYamlPath", "apiKey", "runtimeUrl"]) {
    if (given[name] !== undefined && typeof given[name] !== "string") findings.push(`\`${name}\`: a text`);
  }
  if (given.environment !== undefined && !["development", "staging", "production"].includes(given.environment)) {
    findings.push("`environment`: `development`, `staging` or `production`");
  }
  if (given.store !== undefined) {
    const missing = STORE.filter((name) => typeof given.store?.[name] !== "function");
    if (missing.length > 0) findings.push(`\`store\`: has no ${missing.join(", ")}`);
  }
  if (given.workflow !== undefined) {
    const wrong = given.workflow === null || typeof given.workflow !== "object" ? "an object" : notJson(given.workflow);
    if (wrong) findings.push(`\`workflow\`: ${wrong}`);
    else core.workflow = { ...given.workflow };
  }
  const server = serverOf(given, findings);
  if (server) core.server = true;
  if (!server && given.store === undefined) core.keepsNothing = true;
  core.answersCheckpoints = server !== null || typeof given.onCheckpoint === "function";
  return { core, findings, isLogOnly: core.mode === "log-only", server };
}

/** The server of a session: a key turns it on. Null without one. */
function serverOf(given, findings) {
  const apiKey = given.apiKey ?? process.env.REPRISE_API_KEY;
  if (apiKey === undefined || apiKey === "") return null;
  const runtimeUrl = given.runtimeUrl ?? "http://127.0.0.1:8080";
  if (!/^https?:\/\//.test(runtimeUrl) || !URL.canParse(runtimeUrl)) findings.push("`runtimeUrl`: an address that begins with http:// or https://");
  // The key goes into a header, as it is.
  if (typeof apiKey === "string" && !/^[\x21-\x7e]+$/.test(apiKey)) findings.push("`apiKey`: has characters that no key has");
  return { apiKey, runtimeUrl };
}

/** Reads the texts of contracts and of the session file. Null when there is no source. A server takes texts only. */
function readFiles(given, asTexts = false) {
  const findings = [];
  const contracts = [];
  let session = null;
  let workflow = null;
  let isSource = false;
  const read = (file, shown) => {
    try {
      return { file: shown ?? file, text: fs.readFileSync(file, "utf8") };
    } catch (error) {
      findings.push(`\`${file}\`: ${error.message.split(",")[0]}`);
      return null;
    }
  };
  if (given.contracts !== undefined) {
    isSource = true;
    for (const contract of Array.isArray(given.contracts) ? given.contracts : [given.contracts]) {
      const wrong = contract === null || typeof contract !== "object" ? "a contract is an object" : notJson(contract);
      if (wrong) findings.push(`\`contracts\`: ${wrong}`);
      else if (!asTexts || (typeof contract.file === "string" && typeof contract.text === "string")) contracts.push(contract);
      else contracts.push({ file: `contracts[${contracts.length}]`, text: JSON.stringify(contract) });
    }
  }
  if (typeof given.contractsDir === "string") {
    isSource = true;
    for (const name of yamlFiles(given.contractsDir, findings)) {
      const file = path.join(given.contractsDir, name);
      if (name === "workflow.yaml") {
        if (given.workflow !== undefined && given.workflowYamlPath === undefined) workflow = read(file, name);
        continue;
      }
      if (name !== "session.yaml") contracts.push(read(file, name));
      else if (given.sessionYamlPath === undefined) session = read(file, name);
    }
  }
  if (typeof given.sessionYamlPath === "string") session = read(given.sessionYamlPath);
  if (typeof given.workflowYamlPath === "string" && given.workflow !== undefined) workflow = read(given.workflowYamlPath);
  if (findings.length > 0) throw new ReplayConfigError(findings.join("; "), { condition: "compilation_failed", findings });
  return isSource || session !== null ? { contracts, session, ...(workflow && { workflow }) } : null;
}

/** The YAML files of a folder, sorted. Rules in a file that nobody reads would be rules that silently do not hold. */
function yamlFiles(folder, findings) {
  let names;
  try {
    names = fs.readdirSync(folder);
  } catch (error) {
    findings.push(`\`${folder}\`: ${error.message.split(",")[0]}`);
    return [];
  }
  const files = names.filter((name) => /\.ya?ml$/i.test(name)).sort();
  for (const name of names) {
    const stem = path.parse(name).name.toLowerCase();
    if ((stem === "session" && name !== "session.yaml") || (stem === "workflow" && name !== "workflow.yaml")) {
      findings.push(`\`${path.join(folder, name)}\` is not read; name it \`${stem}.yaml\``);
    }
  }
  if (files.length === 0) findings.push(`\`${folder}\` holds no contracts`);
  return files;
}

/** Says what keeps a value from being JSON; null when it is JSON. */
function notJson(value, above = new Set()) {
  switch (typeof value) {
    case "string":
    case "boolean":
      return null;
    case "number":
      return Number.isFinite(value) ? null : "a number that JSON does not have";
    case "object":
      break;
    default:
      return `JSON has no ${typeof value}`;
  }
  if (value === null) return null;
  if (above.has(value)) return "it contains itself";
  if (typeof value.toJSON === "function") return notJson(value.toJSON(), above);
  const prototype = Object.getPrototypeOf(value);
  if (!Array.isArray(value) && prototype !== null && Object.getPrototypeOf(prototype) !== null) {
    return "objects of a class are not JSON";
  }
  above.add(value);
  for (const member of Array.isArray(value) ? value : Object.values(value)) {
    if (member === undefined && !Array.isArray(value)) continue;
    const wrong = notJson(member, above);
    if (wrong) return wrong;
  }
  above.delete(value);
  return null;
}

function invalid(findings) {
  return new ReplayConfigError(findings.join("; "), { condition: "invalid_option", findings });
}

module.exports = { readOptions, readFiles, notJson, invalid };
