// SPDX-License-Identifier: Apache-2.0
// The policies in the order in which they are evaluated, with what each rule decided among the
// records, and which rules decided nothing.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../api";
import { count, plural, ruleKey } from "../format";
import { Sources } from "../parts";
import { type Filters, href, queryOf, usePlace } from "../place";
import { useRecords } from "../records";
import type { Flow, Policies, Policy, PolicyRule, Rule, Tier } from "../types";

interface Decided { flows: number; packets: number }

const mostPolicies = 300;

/** What each rule decided, by its key. Each end is decided on by its own node, so nothing is
 * counted twice. */
function decisions(rows: Flow[]): Map<string, Decided> {
  const out = new Map<string, Decided>();
  const add = (r: Rule | undefined, f: Flow) => {
    if (!r) return;
    const key = ruleKey(r);
    let d = out.get(key);
    if (!d) out.set(key, (d = { flows: 0, packets: 0 }));
    d.flows++;
    d.packets += f.sent.packets;
  };
  for (const f of rows) {
    for (const e of [f.egress, f.ingress]) {
      add(e?.rule, f);
      add(e?.staged?.rule, f);
    }
    if (f.rule && f.rule !== f.egress?.rule && f.rule !== f.ingress?.rule && !f.egress?.rule && !f.ingress?.rule) add(f.rule, f);
  }
  return out;
}

export function PoliciesView({ filters }: { filters: Filters }) {
  const r = useRecords(filters);
  const { params } = usePlace();
  const wanted = params.get("rule") ?? "";
  const [policies, set] = useState<Policies>();
  const [error, fail] = useState("");
  const [text, find] = useState("");
  const [unused, onlyUnused] = useState(false);
  const decided = useMemo(() => decisions(r.rows), [r.version]);
  useEffect(() => {
    const asking = new AbortController();
    get<Policies>("/api/policies", asking.signal).then(set, (e) => { if (!asking.signal.aborted) fail(e.message); });
    return () => asking.abort();
  }, []);
  if (error) return <p class="bad" role="alert">{error}</p>;
  if (!policies) return <p role="status">Asking for policies …</p>;
  const never = (p: Policy) => p.rules.some((x) => !decided.has(keyOf(p, x)));
  const shown = (p: Policy) => (!text || (p.kind + " " + p.name).toLowerCase().includes(text.toLowerCase())) && (!unused || never(p));
  const known = policies.tiers.some((t) => wanted.startsWith("default-deny|") ? wanted.endsWith("|" + t.name) : t.policies.some((p) => p.rules.some((x) => keyOf(p, x) === wanted)));
  return (
    <div class="policies">
      <div class="bar">
        <Sources records={r} />
        <label>Find <input type="search" value={text} onInput={(e) => find(e.currentTarget.value)} placeholder="kind or name" /></label>
        <label class="check"><input type="checkbox" checked={unused} onChange={(e) => onlyUnused(e.currentTarget.checked)} /> with rules that never matched</label>
      </div>
      {policies.missing.map((m) => <p class="warn" key={m}>{m}</p>)}
      {wanted && !known && <p class="warn" role="status">The rule {wanted.split("|").filter(Boolean).join(" ")} is not among the policies that you may list: it may be gone.</p>}
      {policies.tiers.length === 0 && <p>There are no policies.</p>}
      <ol class="tiers">{policies.tiers.map((t) => <TierCard key={t.name} t={t} shown={shown} decided={decided} wanted={wanted} filters={filters} />)}</ol>
    </div>
  );
}

const keyOf = (p: Policy, r: PolicyRule): string => ruleKey({ kind: p.kind, name: p.name, detail: r.detail });

const order = (n: number | null): string => (n === null ? "last" : "order " + n);

function TierCard({ t, shown, decided, wanted, filters }: { t: Tier; shown: (p: Policy) => boolean; decided: Map<string, Decided>; wanted: string; filters: Filters }) {
  const list = t.policies.filter(shown);
  let flows = 0;
  let packets = 0;
  for (const [key, d] of decided) if (key.startsWith("default-deny|") && key.endsWith("|" + t.name)) {
    flows += d.flows;
    packets += d.packets;
  }
  return (
    <li class="tier card">
      <h2>Tier {t.name} <small>{order(t.order)}{!t.known && <span class="bad"> · there is no such tier: its policies are not in force</span>}</small></h2>
      {list.length === 0 && <p class="note">{t.policies.length === 0 ? "No policy is in it." : "None matches."}</p>}
      {list.slice(0, mostPolicies).map((p) => <PolicyCard key={p.kind + p.name} p={p} decided={decided} wanted={wanted} filters={filters} />)}
      {list.length > mostPolicies && <p class="note">and {plural(list.length - mostPolicies, "more policy")}: find them by name</p>}
      <Marked class="rule end" on={wanted.startsWith("default-deny|") && wanted.endsWith("|" + t.name)}>
        <span>What no rule matches {t.pass ? "goes on to the next tier" : "is denied, for pods that a policy of this tier selects"}</span>
        {!t.pass && <Hits d={{ flows, packets }} />}
      </Marked>
    </li>
  );
}

function PolicyCard({ p, decided, wanted, filters }: { p: Policy; decided: Map<string, Decided>; wanted: string; filters: Filters }) {
  const has = p.rules.some((r) => keyOf(p, r) === wanted);
  const [open, toggle] = useState(has);
  useEffect(() => { if (has) toggle(true); }, [has]);
  const total = p.rules.reduce((n, r) => n + (decided.get(keyOf(p, r))?.flows ?? 0), 0);
  const never = p.rules.filter((r) => !decided.has(keyOf(p, r))).length;
  return (
    <details class="policy" open={open} onToggle={(e) => toggle(e.currentTarget.open)}>
      <summary>
        <strong>{p.name}</strong> <span class="kind">{p.kind}{p.staged && " (staged)"}</span>
        <span class="counts">{plural(total, "flow")}{never > 0 && <> · {never} of {plural(p.rules.length, "rule")} never matched</>}</span>
      </summary>
      {open && (
        <div class="inside">
          <p class="note">{order(p.order)} · {p.types.join(" and ") || "neither direction"} · {p.subject} · <a href={href("flows", queryOf({ ...filters, policy: p.name }))}>flows that it decided</a></p>
          {p.invalid && <p class="bad">Not in force as written: {p.invalid}</p>}
          {p.rules.length === 0 && <p class="note">It has no rules.</p>}
          {p.rules.map((r) => (
            <Marked key={r.detail} class="rule" on={keyOf(p, r) === wanted}>
              <span><code>{r.detail}</code> <span class={"action " + r.action}>{r.action}</span></span>
              <Hits d={decided.get(keyOf(p, r))} />
              {r.text && r.text !== "{}" && <pre tabIndex={0}>{r.text}</pre>}
            </Marked>
          ))}
        </div>
      )}
    </details>
  );
}

function Hits({ d }: { d?: Decided }) {
  if (!d || d.flows === 0) return <span class="hits none">never matched in this time</span>;
  return <span class="hits">{plural(d.flows, "flow")}, {count(d.packets)} packets</span>;
}

/** A line that is scrolled to and marked when it is the one that was asked for. */
function Marked({ on, class: name, children }: { on: boolean; class: string; children: preact.ComponentChildren }) {
  const ref = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!on) return;
    ref.current!.scrollIntoView({ block: "center" });
    ref.current!.focus({ preventScroll: true });
  }, [on]);
  return <div class={on ? name + " marked" : name} ref={ref} tabIndex={on ? -1 : undefined} aria-current={on ? "true" : undefined}>{children}</div>;
}
