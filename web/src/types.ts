// SPDX-License-Identifier: Apache-2.0
// What the server answers: the types of internal/ui and internal/flows in Go.

export interface Rule { kind: string; name?: string; tier?: string; detail?: string }

/** domain is the domain name or wildcard by which the rule allows, name the one that the pod asked for. */
export interface PolicyEnd { rule?: Rule; domain?: string; name?: string; staged?: { verdict: string; rule?: Rule } }

export interface Peer { address: string; port?: number; namespace?: string; pod?: string; workload?: string; node?: string }

export interface Counters { packets: number; bytes: number }

/** A record of one connection and interval; `at` is its end in ms, added here. */
export interface Flow {
  id: string; start: string; end: string; at: number; node: string; verdict: "allowed" | "denied" | "dropped"; reason?: string; ended?: string;
  protocol: string; icmp?: string; source: Peer; destination: Peer; service?: string; asked?: string;
  egress?: PolicyEnd; ingress?: PolicyEnd; rule?: Rule; path?: string; return?: string; handedOn?: boolean; dsr?: boolean; snat?: boolean;
  sent: Counters; received: Counters; tcpFlags?: string; handshakeMicroseconds?: number; retransmitted?: { sent: number; received: number };
}

export interface NodeRecords { node: string; error?: string; status?: { interval: number; oldest: string; kept: number; lost: Record<string, number> } }

export interface Summary { now: string; from?: string; oldest?: string; left: number; more?: boolean; missing?: string[]; nodes: NodeRecords[] }

export interface Drop { reason: string; rule?: string; packets: number }

/** How full a table of the data plane is. */
export interface Table { name: string; family?: string; percent: number; capacity: number }

export interface NodeState {
  name: string; state: string; ready: boolean; why?: string; dataplane?: string; address?: string; version?: string; heartbeat?: string;
  pods: number; services: number; policies: number; drops: Drop[]; tables: Table[]; problems: string[];
}

export interface Cluster { nodes: NodeState[]; components: string[] | null; faults: string[] | null; problems: string[] | null; withoutEffect: string[] | null }

export interface PolicyRule { detail: string; action: string; text: string }

export interface Policy {
  kind: string; name: string; staged?: boolean; order: number | null; subject: string; types: string[]; invalid?: string; rules: PolicyRule[];
}

export interface Tier { name: string; order: number | null; pass: boolean; known: boolean; policies: Policy[] }

export interface Policies { tiers: Tier[]; missing: string[] }

/** The answer of `weir why`: internal/why/ask.Story, as far as the page shows it. */
export interface Story { source: string; target: string; request: { source: string; destination: string; port: number }; nodes: Hop[]; allowed: boolean; verdict: string; doubtful: boolean }

export interface Hop {
  node: string; plane: string; behind?: string; packet: string; flow?: string; notes?: string[]; warnings?: string[];
  service?: { name: string; frontend: string; where: string; chosen?: string; backends: { address: string; pod?: string; node?: string; usable: boolean }[] | null };
  policies?: WhyEnd[];
  program: { name: string; interface: string; tag: string; same: boolean };
  tables?: { table: string; same: boolean; chain?: string };
  outcome: { verdict: string; text: string; packet?: string; reason?: string; rule?: string; way?: string; tunnel?: string; encrypted?: string; route?: { prefix: string; via?: string; interface: string }; gateway?: string };
}

export interface WhyEnd {
  direction: string; host?: string; interface?: string; peer: string;
  explanation: {
    pod: { Namespace: string; Name: string }; hostEndpoint?: string; isolated: boolean; known: boolean; allow: boolean;
    rule: { Kind: string; Name: string; Detail: string; Tier: string };
    tiers?: { name: string; end: string; policies: { kind: string; name: string; invalid?: string; rules?: { detail: string; action: string; matched: boolean; why?: string }[] }[] }[];
  };
}
