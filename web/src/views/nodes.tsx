// SPDX-License-Identifier: Apache-2.0
// How the nodes are: what `weir status` says, with the packets that each dropped by reason.
import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import { age, count, plural } from "../format";
import type { Cluster, NodeState } from "../types";

const askEvery = 5000;

export function NodesView() {
  const [cluster, set] = useState<Cluster>();
  const [error, fail] = useState("");
  useEffect(() => {
    const asking = new AbortController();
    let timer = 0;
    const ask = () => {
      get<Cluster>("/api/cluster", asking.signal).then((c) => { set(c); fail(""); }, (e) => fail(e.message)).finally(() => {
        if (!asking.signal.aborted) timer = window.setTimeout(ask, askEvery);
      });
    };
    ask();
    return () => {
      asking.abort();
      clearTimeout(timer);
    };
  }, []);
  if (!cluster) return error ? <p class="bad" role="alert">{error}</p> : <p role="status">Asking how the nodes are …</p>;
  const ready = cluster.nodes.filter((n) => n.ready).length;
  return (
    <div class="nodes">
      <p class={ready === cluster.nodes.length ? "sources" : "sources warn"} role="status">{ready} of {plural(cluster.nodes.length, "node")} ready · {(cluster.components ?? []).join(" · ")}</p>
      {error && <p class="bad" role="alert">Not up to date: {error}</p>}
      <Lines title="Not healthy" lines={cluster.faults} kind="bad" />
      <Lines title="Not in force as written" lines={cluster.problems} kind="warn" />
      <ul class="cards">{cluster.nodes.map((n) => <NodeCard key={n.name} n={n} />)}</ul>
      <Lines title="Without effect" lines={cluster.withoutEffect} kind="" />
    </div>
  );
}

function NodeCard({ n }: { n: NodeState }) {
  const most = Math.max(1, ...n.drops.map((d) => d.packets));
  return (
    <li class="card node">
      <h2>{n.name} <span class={n.ready ? "state good" : "state bad"}>{n.state}</span></h2>
      {n.why && <p class="bad">{n.why}</p>}
      <dl>
        <div><dt>Data plane</dt><dd>{n.dataplane || "not known"}</dd></div>
        <div><dt>Address</dt><dd>{n.address || "not known"}</dd></div>
        <div><dt>Carries</dt><dd>{plural(n.pods, "pod")}, {plural(n.services, "Service")}, {n.policies === 1 ? "1 policy" : count(n.policies) + " policies"}</dd></div>
        <div><dt>Reported</dt><dd>{n.heartbeat ? age(Date.now() - Date.parse(n.heartbeat)) + " ago" : "never"}</dd></div>
        <div><dt>Version</dt><dd>{n.version || "not known"}</dd></div>
      </dl>
      {n.problems.length > 0 && <ul class="warn">{n.problems.map((p) => <li key={p}>{p}</li>)}</ul>}
      {n.drops.length > 0 && (
        <table class="drops">
          <caption>Dropped packets by reason</caption>
          <thead><tr><th scope="col">Reason</th><th scope="col">Rule</th><th scope="col" class="number">Packets</th></tr></thead>
          <tbody>{n.drops.map((d) => (
            <tr key={d.reason + d.rule}>
              <td>{d.reason}</td><td>{d.rule ?? ""}</td>
              <td class="number">{count(d.packets)}<span class="part" style={{ width: (100 * d.packets) / most + "%" }} /></td>
            </tr>
          ))}</tbody>
        </table>
      )}
      {n.tables.length > 0 && (
        <table class="tables">
          <caption>Fullest tables of the data plane</caption>
          <thead><tr><th scope="col">Table</th><th scope="col" class="number">Room for</th><th scope="col" class="number">In use</th></tr></thead>
          <tbody>{n.tables.map((t) => (
            <tr key={t.name + t.family}>
              <td>{t.name}{t.family ? " " + t.family : ""}</td><td class="number">{count(t.capacity)}</td>
              <td class="number">{t.percent} %<span class={t.percent > 90 ? "part bad" : "part"} style={{ width: t.percent + "%" }} /></td>
            </tr>
          ))}</tbody>
        </table>
      )}
    </li>
  );
}

function Lines({ title, lines, kind }: { title: string; lines: string[] | null; kind: string }) {
  if (!lines || lines.length === 0) return null;
  return (
    <section class="card">
      <h2 class={kind}>{title}</h2>
      <ul>{lines.map((l) => <li key={l}>{l}</li>)}</ul>
    </section>
  );
}
