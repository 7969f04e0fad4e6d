// SPDX-License-Identifier: Apache-2.0
// Who talks to whom: records summed by workload and Service.
import type { Flow, Peer } from "./types";

export interface Vertex { id: string; kind: "workload" | "service" | "node" | "outside"; group: string; label: string; bytes: number; denied: number; edges: number }

export interface Edge { id: string; from: string; to: string; bytes: number; packets: number; denied: number; ports: Set<string>; rule?: string }

export interface Graph { vertices: Map<string, Vertex>; edges: Edge[]; left: number }

/** How much of a cluster one picture shows. */
export const mostVertices = 500;
export const mostEdges = 2000;

interface Sum { bytes: number; packets: number; denied: number }

export function graphOf(rows: Flow[]): Graph {
  // A node knows the labels of some pods alone: what one of them says of a pod's workload counts
  // for all.
  const workloads = new Map<string, string>();
  for (const f of rows) for (const p of [f.source, f.destination]) if (p.pod && p.workload) workloads.set(p.namespace + "/" + p.pod, p.workload);

  const vertices = new Map<string, Vertex>();
  const vertex = (id: string, kind: Vertex["kind"], group: string, label: string): string => {
    if (!vertices.has(id)) vertices.set(id, { id, kind, group, label, bytes: 0, denied: 0, edges: 0 });
    return id;
  };
  const end = (p: Peer): string => {
    if (p.pod) {
      const w = workloads.get(p.namespace + "/" + p.pod);
      return vertex(`w ${p.namespace}/${w ?? p.pod}`, "workload", p.namespace!, w ? w.slice(w.indexOf(" ") + 1) : p.pod);
    }
    return p.node ? vertex("n " + p.node, "node", "nodes", p.node) : vertex("outside", "outside", "", "outside of the cluster");
  };
  // A connection between two nodes has records of both: what the node says counts that has seen
  // most of the pair.
  const edges = new Map<string, Edge & { seen: Map<string, Sum> }>();
  const edge = (from: string, to: string, f: Flow): void => {
    const id = from + " → " + to;
    let e = edges.get(id);
    if (!e) edges.set(id, (e = { id, from, to, bytes: 0, packets: 0, denied: 0, ports: new Set(), seen: new Map() }));
    let s = e.seen.get(f.node);
    if (!s) e.seen.set(f.node, (s = { bytes: 0, packets: 0, denied: 0 }));
    s.bytes += f.sent.bytes + f.received.bytes;
    s.packets += f.sent.packets + f.received.packets;
    if (f.verdict !== "allowed") s.denied += f.sent.packets;
    if (e.ports.size < 8 && f.destination.port) e.ports.add(`${f.protocol} ${f.destination.port}`);
  };
  for (const f of rows) {
    const from = end(f.source);
    const to = end(f.destination);
    if (!f.service) {
      edge(from, to, f);
      continue;
    }
    const name = f.service.split(" ")[0];
    const by = vertex("s " + name, "service", name.split("/")[0], name.slice(name.indexOf("/") + 1));
    edge(from, by, f);
    edge(by, to, f);
  }
  let list = [...edges.values()].map((e) => {
    for (const s of e.seen.values()) {
      e.bytes = Math.max(e.bytes, s.bytes);
      e.packets = Math.max(e.packets, s.packets);
      e.denied = Math.max(e.denied, s.denied);
    }
    return e as Edge;
  });
  // What was denied comes first: it is what nobody may miss.
  list.sort((a, b) => +(b.denied > 0) - +(a.denied > 0) || b.bytes - a.bytes || (a.id < b.id ? -1 : 1));
  const all = list.length;
  const shown = new Set<string>();
  list = list.filter((e) => {
    const added = +!shown.has(e.from) + +(e.to !== e.from && !shown.has(e.to));
    if (shown.size + added > mostVertices) return false;
    shown.add(e.from).add(e.to);
    return true;
  }).slice(0, mostEdges);
  for (const id of [...vertices.keys()]) if (!shown.has(id)) vertices.delete(id);
  for (const e of list) for (const id of new Set([e.from, e.to])) {
    const v = vertices.get(id)!;
    v.bytes += e.bytes;
    v.denied += e.denied;
    v.edges++;
  }
  return { vertices, edges: list, left: all - list.length };
}
