// Compiled, never run: what TypeScript knows of a session.
import { replay, observe, ReplayContractError, ReplayConfigError, type ReplayDecision, type ReplaySession, type WorkflowStateSnapshot } from "@reprise/replay";
import OpenAI5 from "openai5";
import OpenAI6 from "openai6";
import OpenAI7, { AzureOpenAI } from "openai7";
import Anthropic060 from "anthropic060";
import Anthropic1 from "anthropic1";

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const holds = <T extends true>(): T | undefined => undefined;

const options = { contracts: { tool: "x", side_effect: "read" as const } };

const five = replay(new OpenAI5(), options);
const six = replay(new OpenAI6(), options);
const seven = replay(new OpenAI7(), options);
const azure = replay(new AzureOpenAI({ apiVersion: "1", endpoint: "https://example.org" }), options);
const old = replay(new Anthropic060(), options);
const recent = replay(new Anthropic1(), options);
holds<Equal<typeof five.client, OpenAI5>>();
holds<Equal<typeof six.client, OpenAI6>>();
holds<Equal<typeof seven, ReplaySession<OpenAI7>>>();
holds<Equal<typeof azure.client, AzureOpenAI>>();
holds<Equal<typeof old.client, Anthropic060>>();
holds<Equal<typeof recent.client, Anthropic1>>();

export async function calls(): Promise<void> {
  const messages = [{ role: "user" as const, content: "x" }];
  const whole = await seven.client.chat.completions.create({ model: "m", messages });
  const text: string | null | undefined = whole.choices[0]?.message.content;
  const stream = await seven.client.chat.completions.create({ model: "m", messages, stream: true });
  for await (const chunk of stream) chunk.choices[0]?.delta.content satisfies string | null | undefined;
  const message = await recent.client.messages.create({ model: "m", max_tokens: 1, messages });
  message.content satisfies unknown[];
  seven.getState().startedAt satisfies Date;
  seven.getState().principal satisfies null;
  const done: Promise<{ sent: number; dropped: number; pending: number }> = seven.flush();
  void [text, done, observe(new OpenAI7()).client.models];
  try {
    await seven.tools["x"]?.({ a: 1 }, { callId: "c" });
  } catch (error) {
    if (error instanceof ReplayContractError) error.decision satisfies ReplayDecision;
    if (error instanceof ReplayConfigError && error.condition === "compilation_failed") error.findings satisfies unknown[];
  }
}

// @ts-expect-error not a client
replay({}, options);
// @ts-expect-error options are needed
replay(new OpenAI7());
// @ts-expect-error no such mode
replay(new OpenAI7(), { ...options, mode: "strict" });
seven.getHealth().governanceAttachment satisfies "attached" | "no_plan" | "fetch_failed" | "artifact_invalid" | "attachment_failed" | "not_applicable";
replay(new OpenAI7(), { agent: "desk", apiKey: "key", environment: "staging" });
// @ts-expect-error no such environment
replay(new OpenAI7(), { ...options, environment: "test" });
// @ts-expect-error no such gate
replay(new OpenAI7(), { ...options, gate: "all" });
// @ts-expect-error no such option
replay(new OpenAI7(), { ...options, colour: "red" });
// @ts-expect-error snapshots cannot be changed
seven.getState().killed = true;
// @ts-expect-error a label is a text
seven.addLabel(7);

import { recorder, recording, type Recording } from "@reprise/replay/testing";

const run: Recording = recording("session.jsonl");
const served = replay(new OpenAI7({ apiKey: "k", fetch: run.fetch }), {
  contractsDir: "contracts",
  apiKey: "key",
  runtimeUrl: "http://127.0.0.1:8080",
  tools: run.tools,
  store: recorder("session.jsonl"),
  workflow: { type: "child", workflowId: "w", role: "inspector", handoffId: "h" },
});
const workflowState: Promise<WorkflowStateSnapshot | null> = served.getWorkflowState();
// @ts-expect-error: a child takes an offer
replay(new OpenAI7({ apiKey: "k" }), { workflow: { type: "child", workflowId: "w", role: "inspector" } });
export { workflowState };
