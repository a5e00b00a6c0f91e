// Types of `@reprise/replay`. Neither client library is imported: what a client must have is said by its shape, so that
// two versions in one tree work, and `session.client` keeps the type of the client that was given.

export interface OpenAILike {
  chat: { completions: { create(...args: any[]): any } };
  withOptions(options: any): any;
}

export interface AnthropicLike {
  messages: { create(...args: any[]): any };
  withOptions(options: any): any;
}

/** A contract: a parsed file, or its name and text. */
export type Contract = { tool: string; side_effect: SideEffect; [member: string]: unknown } | { file: string; text: string };
export type SideEffect = "read" | "write" | "destructive" | "admin" | "financial";
export type ProviderConstraints = { block_incompatible?: string[]; warn_incompatible?: string[] };
export type CapturePrivacyTier = "metadata" | "redacted" | "full";
export type Price = { input: number | string; output: number | string; cache_read?: number | string; cache_write?: number | string };

export type ToolExecutor = (args: any, context: { callId: string; sessionId: string; signal: AbortSignal }) => unknown | Promise<unknown>;
export type WrappedToolExecutor = (args: any, options?: { callId?: string }) => Promise<unknown>;

/** Where records and captures are kept. */
export interface Store {
  append(record: Uint8Array): Promise<void>;
  read(from: number): AsyncIterable<Uint8Array>;
  head(): Promise<number>;
  putBlob(digest: string, bytes: Uint8Array): Promise<void>;
  getBlob(digest: string): Promise<Uint8Array | null>;
}

export type ReplayOptions = {
  contracts?: Contract | Contract[];
  contractsDir?: string;
  sessionYamlPath?: string;
  workflowYamlPath?: string;
  agent?: string;
  sessionId?: string;
  mode?: "enforce" | "shadow" | "log-only";
  gate?: "reject_all" | "strip_partial" | "strip_blocked";
  onError?: "block" | "allow";
  unmatchedPolicy?: "block" | "allow";
  compatEnforcement?: "protective" | "advisory";
  maxRetries?: number;
  maxUnguardedCalls?: number;
  narrowingFeedback?: "silent" | "metadata" | "inject";
  providerConstraints?: ProviderConstraints;
  principal?: unknown;
  tools?: Record<string, ToolExecutor>;
  /** Turns on the server, which then judges. Default: the environment variable `REPRISE_API_KEY`. */
  apiKey?: string;
  /** Default: `http://127.0.0.1:8080`. */
  runtimeUrl?: string;
  /** What rules of the server do, for a session without contracts. Default: the variable `REPRISE_ENVIRONMENT`, else `production`. */
  environment?: "development" | "staging" | "production";
  captureLevel?: CapturePrivacyTier;
  store?: Store;
  onBlock?: (decision: ReplayDecision) => void;
  onNarrow?: (narrowing: NarrowResult) => void;
  diagnostics?: (event: DiagnosticEvent) => void;
  labels?: string[];
  onCheckpoint?: (request: ApprovalRequest) => Promise<ApprovalResponse>;
  workflow?: WorkflowOptions;
  pricing?: Record<string, Price>;
};

export type WorkflowOptions =
  | { type: "root"; workflowId: string; role: string }
  | { type: "child"; workflowId: string; role: string; handoffId: string };

export type ReplaySession<T> = {
  /** An instance of the client's own class; not the original. */
  client: T;
  /** The same pipeline as a `fetch`, for frameworks that build a client of their own. */
  fetch: typeof globalThis.fetch;
  flush: () => Promise<FlushResult>;
  restore: () => void;
  kill: () => void;
  addLabel: (label: string) => void;
  getState: () => SessionStateSnapshot;
  getHealth: () => ReplayHealthSnapshot;
  getLastNarrowing: () => NarrowingSnapshot | null;
  getLastShadowDelta: () => ShadowDelta | null;
  tools: Record<string, WrappedToolExecutor>;
  narrow: (toolFilter: string[]) => void;
  widen: () => void;
  getWorkflowState: () => Promise<WorkflowStateSnapshot | null>;
  handoff: (offer: HandoffOfferInput) => Promise<HandoffOfferResult | null>;
};

export type FlushResult = { sent: number; dropped: number; pending: number };

export type SessionStateSnapshot = {
  readonly sessionId: string;
  readonly agent: string | null;
  readonly principal: null;
  readonly startedAt: Date;
  readonly stateVersion: number;
  readonly controlRevision: number;
  readonly currentPhase: string | null;
  readonly totalStepCount: number;
  readonly totalToolCalls: number;
  readonly totalCost: number;
  readonly actualCost: number;
  readonly exactCosts: { readonly total: string; readonly actual: string; readonly incomplete: boolean };
  readonly toolCallCounts: Readonly<Record<string, number>>;
  readonly forbiddenTools: readonly string[];
  readonly satisfiedPreconditions: Readonly<Record<string, unknown>>;
  readonly lastStep: CompletedStepSnapshot | null;
  readonly lastNarrowing: NarrowingSnapshot | null;
  readonly killed: boolean;
  readonly totalUnguardedCalls: number;
  readonly consecutiveBlockCount: number;
  readonly totalBlockCount: number;
  readonly labels: readonly string[];
  readonly attemptCount: number;
  readonly checkpointCount: number;
};

export type CompletedStepSnapshot = {
  readonly index: number;
  readonly phaseBefore: string | null;
  readonly phaseAfter: string | null;
  readonly tools: readonly string[];
  readonly cost: number | null;
};

export type ReplayHealthSnapshot = {
  readonly status: "healthy" | "degraded" | "inactive";
  readonly authorityState: "active" | "advisory" | "compromised" | "recovering" | "killed" | "inactive";
  readonly protectionLevel: "monitor" | "protect" | "govern";
  readonly durability: "server" | "degraded-local" | "local" | "inactive";
  readonly tier: "strong" | "compat";
  readonly compatEnforcement: "protective" | "advisory";
  readonly cluster_detected: boolean;
  readonly bypass_detected: boolean;
  readonly totalSteps: number;
  readonly totalBlocks: number;
  readonly totalErrors: number;
  readonly killed: boolean;
  readonly shadowEvaluations: number;
  readonly governanceAttachment: GovernanceAttachment;
  readonly unresolvedReceiptCount: number;
};

export type NarrowReason =
  | "wrong_phase"
  | "precondition_not_met"
  | "forbidden_in_state"
  | "no_contract"
  | "policy_denied"
  | "manual_filter"
  | "label_gate"
  | "risk_gate"
  | "limit_reached";
export type NarrowedTool = { tool: string; reason: NarrowReason; detail?: string; contract_file?: string };
/** A tool as the caller offered it. */
export type ToolDefinition = Record<string, any>;
export type NarrowResult = { allowed: ToolDefinition[]; removed: NarrowedTool[] };
export type NarrowingSnapshot = { readonly allowed: readonly string[]; readonly removed: readonly NarrowedTool[] };

export type ShadowDelta = {
  readonly would_have_narrowed: readonly { tool: string; reason: NarrowReason }[];
  readonly would_have_blocked: readonly { tool_name: string; reason: BlockReason; detail: string | null }[];
  readonly current_phase: string | null;
  readonly legal_next_phases: readonly string[];
};

export type BlockReason =
  | "output_invariant_failed"
  | "input_invariant_failed"
  | "response_format_invalid"
  | "argument_value_mismatch"
  | "precondition_not_met"
  | "forbidden_tool"
  | "session_limit_exceeded"
  | "loop_detected"
  | "illegal_phase_transition"
  | "ambiguous_phase_transition"
  | "unmatched_tool_blocked"
  | "policy_denied"
  | "execution_constraint_violated"
  | "risk_gate_blocked"
  | "killed"
  | "binding_not_found"
  | "ref_mismatch"
  | "aggregate_limit_exceeded"
  | "aggregate_path_missing"
  | "envelope_not_established"
  | "envelope_violation"
  | "checkpoint_denied"
  | "checkpoint_timeout"
  | "checkpoint_budget_exceeded"
  | "label_gate"
  | "manual_filter";

export type ReplayDecision = {
  action: "released" | "stripped" | "rejected" | "retried";
  gate: "reject_all" | "strip_partial" | "strip_blocked";
  attempt: number;
  stateVersion: number;
  controlRevision: number;
  compiled: string;
  reason: BlockReason | null;
  detail: string | null;
  contract_file: string | null;
  calls: DecidedCall[];
};

export type DecidedCall = {
  call_id: string;
  tool_name: string;
  arguments_digest: string;
  verdict: "allow" | "block";
  reason: BlockReason | null;
  all_reasons: BlockReason[];
  detail: string | null;
  contract_file: string | null;
};

export type ContractFailure = {
  path: string | null;
  operator: string | null;
  expected: string | null;
  contract_file: string | null;
  reason: BlockReason;
};

export type ApprovalRequest = {
  checkpoint_id: string;
  session_id: string;
  tool_name: string;
  arguments: Record<string, unknown>;
  context: Array<{ label: string; value: unknown }>;
  reason: string;
  timeout_seconds: number;
  requested_at: string;
};

export type ApprovalResponse = {
  checkpoint_id: string;
  decision: "approve" | "deny";
  decided_by: string;
  decided_at: string;
  reason?: string;
};

export type DiagnosticEvent = {
  name: string;
  time: string;
  session_id: string;
  state_version: number;
  data: Record<string, string | number | boolean | null>;
};

export type WorkflowStateSnapshot = {
  readonly workflow_id: string;
  readonly role: string | null;
  readonly sessions: readonly { session_id: string; role: string; parent: string | null; status: string }[];
  readonly cost: string;
  readonly cost_incomplete: boolean;
  readonly tool_calls: number;
  readonly open_offers: readonly { handoff_id: string; from_session: string; to_role: string; summary: string; expires_at: string }[];
};
export type HandoffOfferInput = { to_role: string; summary: string; carry?: string[]; expires_in_seconds?: number };
export type HandoffOfferResult = { handoff_id: string; status: string; expires_at: string };

/** Creates a governed session around a client. */
export function replay<T extends OpenAILike | AnthropicLike>(client: T, options: ReplayOptions): ReplaySession<T>;

export type ObserveOptions = Pick<ReplayOptions, "agent" | "sessionId" | "captureLevel" | "pricing" | "diagnostics" | "store" | "apiKey" | "runtimeUrl">;
export type ReplayObserver<T> = Pick<ReplaySession<T>, "client" | "fetch" | "flush" | "restore" | "getHealth">;

/** Records what a client does and enforces nothing. */
export function observe<T extends OpenAILike | AnthropicLike>(client: T, options?: ObserveOptions): ReplayObserver<T>;

export class ReplayError extends Error {
  readonly sessionId?: string;
}
export class ReplayContractError extends ReplayError {
  readonly decision: ReplayDecision;
  readonly contractFile: string | null;
  readonly failures: ContractFailure[];
}
export class ReplayKillError extends ReplayError {
  readonly cause_of_kill: string;
}
/** How rules of the server are attached to a session without contracts of its own. */
export type GovernanceAttachment = "attached" | "no_plan" | "fetch_failed" | "artifact_invalid" | "attachment_failed" | "not_applicable";

export class ReplayConfigError extends ReplayError {
  /** Where rules of the server were wanted and are not there. */
  readonly governanceAttachment?: GovernanceAttachment;
  readonly condition:
    | "policy_without_principal"
    | "constraints_without_wrapper"
    | "compilation_failed"
    | "provider_incompatible"
    | "checkpoint_without_handler"
    | "invalid_option"
    | "workflow_not_found"
    | "core_unavailable";
  readonly findings: Array<string | { file: string; line: number | null; column: number | null; code: string; message: string }>;
}
export class ReplayFaultError extends ReplayError {
  readonly retrySafe: boolean;
}
export class ReplayInactiveError extends ReplayError {}
export class ReplayUnsupportedError extends ReplayError {
  readonly member: string;
}
export class ReplayTimeoutError extends ReplayError {}
