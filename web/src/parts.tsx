// SPDX-License-Identifier: Apache-2.0
// Parts that views share.
import { count, plural, ruleHref, ruleText } from "./format";
import type { Filters } from "./place";
import type { Flow, Rule, Summary } from "./types";

interface Seen { rows: Flow[]; loading: boolean; error: string; left: number; more: boolean; summary?: Summary }

/** Says what the shown records lack: nodes without an answer, and what these have not kept. */
export function Sources({ records: r }: { records: Seen }) {
  const nodes = r.summary?.nodes ?? [];
  const silent = nodes.filter((n) => n.error);
  const lost = nodes.reduce((sum, n) => sum + Object.values(n.status?.lost ?? {}).reduce((a, b) => a + b, 0), 0);
  return (
    <div class="sources" role="status">
      {r.loading ? "Asking …" : plural(r.rows.length, "record")}
      {r.left > 0 && <> (and {count(r.left)} older ones that are not shown)</>}
      {r.left === 0 && r.more && <> (and older ones that are not shown)</>}
      {!r.loading && nodes.length > 0 && <> of {plural(nodes.length - silent.length, "node")}</>}
      {!r.loading && nodes.length === 0 && r.summary?.from && <> of {r.summary.from}</>}
      {!r.loading && r.summary?.oldest && <>, which has them from {new Date(r.summary.oldest).toLocaleString()} on</>}
      {lost > 0 && <span class="warn"> · nodes have not kept {plural(lost, "record")}</span>}
      {r.summary?.missing?.map((m) => <p key={m} class="warn">{m}</p>)}
      {r.error && <p class="bad">Not up to date: {r.error}</p>}
      {silent.length > 0 && (
        <details>
          <summary class="warn">{plural(silent.length, "node")} without an answer</summary>
          <ul>{silent.map((n) => <li key={n.node}><strong>{n.node}</strong>: {n.error}</li>)}</ul>
        </details>
      )}
    </div>
  );
}

/** Says why there is nothing to see. */
export function NoRecords({ records: r }: { records: Seen }) {
  if (r.loading || r.error) return null;
  const off = r.summary?.nodes.some((n) => n.error?.includes("flowLogsLocalReporter"));
  return (
    <div class="card">
      <h2>No records</h2>
      {off ? (
        <>
          <p>Nodes keep records of flows while FelixConfiguration <code>spec.flowLogsLocalReporter</code> is Enabled. To switch them on:</p>
          <pre tabIndex={0}>{`weir patch felixconfiguration default --patch '{"spec":{"flowLogsLocalReporter":"Enabled"}}'`}</pre>
          <p>Agents start again with it; no connection is lost.</p>
        </>
      ) : <p>Nothing in this time matches the filter.</p>}
    </div>
  );
}

/** A verdict, which leads to the rule that decided. */
export function Verdict({ flow: f, filters }: { flow: Flow; filters: Filters }) {
  const sign = f.verdict === "allowed" ? "✓" : "✕";
  const words = <><span aria-hidden="true">{sign} </span>{f.verdict}</>;
  const kind = "verdict " + f.verdict;
  if (!f.rule) return <span class={kind}>{words}{f.reason ? " " + f.reason : ""}</span>;
  return (
    <a class={kind} href={ruleHref(f.rule, filters)} title="Open the policy at this rule">
      {words} <span class="by">{ruleText(f.rule)}</span>
    </a>
  );
}

export function RuleLink({ rule, filters }: { rule: Rule; filters: Filters }) {
  return <a href={ruleHref(rule, filters)}>{ruleText(rule)}</a>;
}
