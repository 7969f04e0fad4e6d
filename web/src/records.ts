// SPDX-License-Identifier: Apache-2.0
// The records of flows that the page has: those of one filter, by the time of their end, which grow
// as nodes end their intervals.
import { useEffect, useReducer } from "preact/hooks";
import { lines } from "./api";
import { type Filters, queryOf } from "./place";
import type { Flow, Summary } from "./types";

/** How many records are kept; the oldest go first. */
export const most = 100_000;
const pollEvery = 3000;
/** The store of all nodes is asked less often than their agents. */
const pollStoreEvery = 10_000;

const spans: Record<string, number> = { "5m": 3e5, "15m": 9e5, "1h": 36e5, "24h": 864e5 };

class Records {
  rows: Flow[] = [];
  version = 0;
  loading = true;
  error = "";
  paused = false;
  left = 0;
  /** There are older ones that nobody counted. */
  more = false;
  summary?: Summary;

  private ids = new Set<string>();
  private strings = new Map<string, string>();
  private filters?: Filters;
  private name = "";
  private timer = 0;
  private asking?: AbortController;
  private listeners = new Set<() => void>();

  subscribe(f: () => void): () => void {
    this.listeners.add(f);
    return () => void this.listeners.delete(f);
  }

  private changed(): void {
    this.version++;
    this.listeners.forEach((f) => f());
  }

  /** Shows the records of a filter from now on. */
  use(filters: Filters): void {
    const name = filters.within + " " + queryOf(filters);
    if (name === this.name) return;
    this.name = name;
    this.filters = filters;
    this.asking?.abort();
    clearTimeout(this.timer);
    this.rows = [];
    this.ids.clear();
    this.strings.clear();
    Object.assign(this, { loading: true, error: "", left: 0, more: false, summary: undefined });
    this.changed();
    void this.poll();
  }

  pause(paused: boolean): void {
    this.paused = paused;
    this.changed();
    if (!paused) {
      clearTimeout(this.timer);
      void this.poll();
    }
  }

  private async poll(): Promise<void> {
    const f = this.filters!;
    const asking = (this.asking = new AbortController());
    const q = queryOf(f);
    q.delete("within");
    const newest = f.until ? undefined : this.rows.at(-1)?.at;
    if (!this.loading && newest !== undefined) q.set("since", new Date(newest - this.overlap()).toISOString());
    else if (f.within !== "all") q.set("within", f.within);
    const fresh: Flow[] = [];
    let summary: Summary | undefined;
    try {
      await lines("/api/flows?" + q, (v) => {
        if (v.summary) summary = v.summary;
        else if (!this.ids.has(v.id)) fresh.push(this.kept(v));
      }, asking.signal);
      if (!summary) throw new Error("the answer ended early");
      if (asking.signal.aborted) return;
      if (!this.loading && summary.from !== this.summary?.from) { // others answer, who may tell the same otherwise
        this.name = "";
        return this.use(f);
      }
      if (this.loading) this.left = summary.left;
      if (this.loading) this.more = !!summary.more;
      this.summary = summary;
      this.add(fresh, Date.parse(summary.now));
      this.error = "";
    } catch (e) {
      if (asking.signal.aborted) return;
      this.error = (e as Error).message;
    }
    this.loading = false;
    this.changed();
    this.wait();
  }

  private wait(): void {
    clearTimeout(this.timer);
    if (this.filters!.until && !this.error) return; // what is past does not grow
    this.timer = window.setTimeout(() => {
      if (this.paused || document.visibilityState === "hidden") this.wait();
      else void this.poll();
    }, this.summary && this.summary.nodes.length === 0 ? pollStoreEvery : pollEvery);
  }

  /** A node tells a record up to an interval after its end; clocks may differ by half a minute. Of
   * nodes' intervals the store says nothing: there it is twice as long as records were late. */
  private overlap(): number {
    const longest = Math.max(0, ...(this.summary?.nodes ?? []).map((n) => n.status?.interval ?? 0));
    return Math.max(longest / 1e6 + 30_000, this.summary?.nodes.length ? 0 : Math.max(60_000, 2 * this.late));
  }

  private late = 0;

  private add(fresh: Flow[], now: number): void {
    if (!this.loading) for (const r of fresh) this.late = Math.min(Math.max(this.late, now - r.at), 600_000);
    if (fresh.length > 0) {
      for (const r of fresh) this.ids.add(r.id);
      this.rows = this.rows.concat(fresh).sort((a, b) => a.at - b.at);
    }
    const until = this.filters!.until;
    const oldest = (until ? Date.parse(until) : now) - (spans[this.filters!.within] ?? Infinity);
    let gone = Math.max(0, this.rows.length - most);
    this.left += gone;
    while (gone < this.rows.length && this.rows[gone].at < oldest) gone++;
    if (gone > 0) {
      for (const r of this.rows.slice(0, gone)) this.ids.delete(r.id);
      this.rows = this.rows.slice(gone);
    }
  }

  /** Makes records share strings: thousands have the same names. */
  private kept(r: Flow): Flow {
    const one = <T extends string | undefined>(s: T): T => {
      if (s === undefined) return s;
      const have = this.strings.get(s);
      if (have === undefined) this.strings.set(s, s);
      return (have as T) ?? s;
    };
    r.at = Date.parse(r.end);
    r.node = one(r.node);
    r.verdict = one(r.verdict);
    r.protocol = one(r.protocol);
    r.service = one(r.service);
    for (const p of [r.source, r.destination]) {
      p.address = one(p.address);
      p.namespace = one(p.namespace);
      p.pod = one(p.pod);
      p.workload = one(p.workload);
      p.node = one(p.node);
    }
    return r;
  }
}

export const records = new Records();

/** Shows the component again whenever there are other records. */
export function useRecords(filters: Filters): Records {
  const [, again] = useReducer((n: number) => n + 1, 0);
  useEffect(() => records.subscribe(() => again(undefined as never)), []);
  useEffect(() => records.use(filters), [filters.within, filters.until, filters.from, filters.to, filters.policy, filters.denied]);
  return records;
}
