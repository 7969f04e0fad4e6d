// SPDX-License-Identifier: Apache-2.0
// Why a connection is allowed or denied: the answer of `weir why`, drawn hop by hop.
import { useEffect, useState } from "preact/hooks";
import { post } from "../api";
import { go, href, usePlace } from "../place";
import type { Hop, Story, WhyEnd } from "../types";

const fields = [
  { name: "source", label: "From", hint: "namespace/pod, node/name, or an address" },
  { name: "target", label: "To", hint: "svc/namespace/name:port, namespace/pod:port, address:port/udp" },
  { name: "node", label: "In at node", hint: "for a client from outside; may be empty" },
] as const;

export function WhyView() {
  const { params } = usePlace();
  const asked = params.toString();
  const [form, fill] = useState<Record<string, string>>({});
  const [story, set] = useState<Story>();
  const [error, fail] = useState("");
  const [busy, wait] = useState(false);
  useEffect(() => {
    const q = new URLSearchParams(asked);
    fill(Object.fromEntries(fields.map((f) => [f.name, q.get(f.name) ?? ""])));
    set(undefined);
    fail("");
    if (!q.get("source") || !q.get("target")) return;
    const asking = new AbortController();
    wait(true);
    post<Story>("/api/why", { source: q.get("source"), target: q.get("target"), node: q.get("node") ?? "" }, asking.signal)
      .then(set, (e) => { if (!asking.signal.aborted) fail(e.message); })
      .finally(() => { if (!asking.signal.aborted) wait(false); });
    return () => asking.abort();
  }, [asked]);
  const ask = (e: Event) => {
    e.preventDefault();
    const q = new URLSearchParams();
    for (const f of fields) if (form[f.name]?.trim()) q.set(f.name, form[f.name].trim());
    go(href("why", q));
  };
  return (
    <div class="why">
      <form class="card ask" onSubmit={ask}>
        {fields.map((f) => (
          <label key={f.name}>{f.label}
            <input name={f.name} value={form[f.name] ?? ""} placeholder={f.hint} required={f.name !== "node"} autocomplete="off" spellcheck={false}
              onInput={(e) => fill({ ...form, [f.name]: e.currentTarget.value })} />
          </label>
        ))}
        <button type="submit" class="main">Ask</button>
      </form>
      {busy && <p role="status">Asking the nodes …</p>}
      {error && <p class="bad" role="alert">{error}</p>}
      {story && <Told s={story} />}
    </div>
  );
}

function Told({ s }: { s: Story }) {
  return (
    <section aria-label="The answer">
      <p class={"conclusion " + (s.doubtful ? "doubtful" : s.allowed ? "allowed" : "denied")} role="status">
        <span aria-hidden="true">{s.allowed ? "✓ " : "✕ "}</span>{s.verdict}
        {s.doubtful && " — but what was found does not fit together"}
      </p>
      <ol class="hops">
        <li class="hop end"><h2>{s.source}</h2><p>{s.request.source}</p></li>
        {s.nodes.map((n, i) => <HopCard key={i} n={n} />)}
        <li class={"hop end " + (s.allowed ? "allowed" : "denied")}><h2>{s.target}</h2><p>{s.request.destination}{s.request.port ? " port " + s.request.port : ""}{!s.allowed && ": not reached"}</p></li>
      </ol>
    </section>
  );
}

function HopCard({ n }: { n: Hop }) {
  const o = n.outcome;
  return (
    <li class={"hop card " + (o.verdict === "dropped" ? "denied" : "allowed")}>
      <h2>Node {n.node} <small>{n.plane}</small></h2>
      {n.behind && <p class="bad">The kernel is behind what is wanted: {n.behind}</p>}
      {(n.warnings ?? []).map((w) => <p class="bad" key={w}>{w}</p>)}
      <ol class="steps">
        <li><strong>In</strong> <code>{n.packet}</code></li>
        {n.service && (
          <li>
            <strong>Service</strong> {n.service.name} at {n.service.frontend}, translated {n.service.where}
            {n.service.chosen && <>: <code>{n.service.chosen}</code></>}
            {(n.service.backends ?? []).length === 0 ? <span class="bad"> no endpoint is ready</span> : <span class="note"> of {n.service.backends!.length} endpoints</span>}
          </li>
        )}
        {(n.policies ?? []).map((e, i) => <EndStep key={i} e={e} />)}
        {n.flow && <li><strong>Flow</strong> {n.flow}</li>}
        <li><strong>Proof</strong> {n.tables ? `table ${n.tables.table} of nftables, ${n.tables.same ? "all as written" : "NOT as written"}` : `${n.program.name} at ${n.program.interface}, ${n.program.same ? "the same as loaded" : "NOT the one that is loaded"}`}</li>
        <li class={o.verdict === "dropped" ? "bad" : "good"}>
          <strong>Out</strong> {o.verdict}: {o.text}{o.reason && ` (${o.reason})`}
          {o.rule && <div class="note">by {o.rule}</div>}
          {o.packet && o.packet !== n.packet && <div><code>{o.packet}</code></div>}
          {o.route && <div class="note">route {o.route.prefix}{o.route.via && " via " + o.route.via} dev {o.route.interface}</div>}
        </li>
      </ol>
      {(n.notes ?? []).map((t) => <p class="note" key={t}>{t}</p>)}
    </li>
  );
}

function EndStep({ e }: { e: WhyEnd }) {
  const x = e.explanation;
  const of = e.host ? `host endpoint ${x.hostEndpoint} at ${e.interface}` : `pod ${x.pod.Namespace}/${x.pod.Name}`;
  if (!x.isolated) return <li class="good"><strong>{e.direction}</strong> no policy selects {of}: allowed</li>;
  return (
    <li class={x.allow ? "good" : "bad"}>
      <strong>{e.direction}</strong> of {of}, {e.direction === "ingress" ? "from" : "to"} {e.peer}: {x.allow ? "allowed" : "denied"}
      {!x.known && <p class="bad">The pod, or its namespace, is not known to the agent yet.</p>}
      <ul class="looked">
        {(x.tiers ?? []).map((t) => (
          <li key={t.name}>tier {t.name}: {t.end}
            <ul>
              {t.policies.map((p) => (
                <li key={p.kind + p.name}>{p.kind} {p.name}{p.invalid && <span class="bad"> not in force as written: {p.invalid}</span>}
                  {!p.rules?.length ? <span class="note"> no rules in this direction</span> : (
                    <ul>{p.rules.map((r) => (
                      <li key={r.detail} class={r.matched ? "matched" : ""}><code>{r.detail}</code> {r.action} {r.matched ? "matches" : <span class="note">no: {r.why}</span>}</li>
                    ))}</ul>
                  )}
                </li>
              ))}
            </ul>
          </li>
        ))}
      </ul>
    </li>
  );
}
