// SPDX-License-Identifier: Apache-2.0
// Where the user is: the view is the path of the address, filters are its query. So each view can
// be kept as a bookmark, and back goes back.
import { useEffect, useState } from "preact/hooks";

export const views = ["map", "flows", "policies", "nodes", "why"] as const;
export type View = (typeof views)[number];

export interface Place { view: View; params: URLSearchParams }

/** A filter of records; until is a time of ISO 8601, empty = now. */
export interface Filters { within: string; until: string; from: string; to: string; policy: string; denied: boolean }

export const windows: Record<string, string> = { "5m": "5 minutes", "15m": "15 minutes", "1h": "1 hour", "24h": "a day", all: "all that is kept" };

export function here(): Place {
  const name = location.pathname.slice(1) as View;
  return { view: views.includes(name) ? name : "map", params: new URLSearchParams(location.search) };
}

export function filtersOf(p: URLSearchParams): Filters {
  const within = p.get("within") ?? "";
  const until = p.get("until") ?? "";
  return { within: within in windows ? within : "15m", until: isNaN(Date.parse(until)) ? "" : until, from: p.get("from") ?? "", to: p.get("to") ?? "", policy: p.get("policy") ?? "", denied: p.get("denied") === "true" };
}

/** The query that says a filter; what is as usual is left out. */
export function queryOf(f: Filters): URLSearchParams {
  const q = new URLSearchParams();
  if (f.within !== "15m") q.set("within", f.within);
  for (const k of ["until", "from", "to", "policy"] as const) if (f[k]) q.set(k, f[k]);
  if (f.denied) q.set("denied", "true");
  return q;
}

export function href(view: View, params: URLSearchParams): string {
  const q = params.toString();
  return "/" + view + (q ? "?" + q : "");
}

const listeners = new Set<() => void>();
addEventListener("popstate", () => listeners.forEach((f) => f()));

export function go(to: string, replace = false): void {
  if (to === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", to);
  listeners.forEach((f) => f());
}

export function usePlace(): Place {
  const [place, set] = useState(here);
  useEffect(() => {
    const f = () => set(here());
    listeners.add(f);
    return () => void listeners.delete(f);
  }, []);
  return place;
}

/** Makes links to views change the view, without loading the page anew. */
export function follow(e: MouseEvent): void {
  const a = (e.target as Element).closest?.("a");
  if (!a || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey || a.origin !== location.origin || a.hash || a.pathname.startsWith("/api/")) return;
  e.preventDefault();
  go(a.pathname + a.search);
}
