// SPDX-License-Identifier: Apache-2.0
// Words for what records say.
import { type Filters, href, queryOf } from "./place";
import type { Flow, Peer, Rule } from "./types";

const units = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(n: number): string {
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit++;
  }
  return (unit === 0 ? String(n) : n.toFixed(n < 10 ? 1 : 0)) + " " + units[unit];
}

export const count = (n: number): string => n.toLocaleString("en");

/** "1 flow", "2 flows". */
export const plural = (n: number, what: string): string => `${count(n)} ${what}${n === 1 ? "" : "s"}`;

const two = (n: number): string => String(n).padStart(2, "0");

export function clock(ms: number): string {
  const d = new Date(ms);
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}

export function age(ms: number): string {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 120) return s + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " days";
}

export const peer = (p: Peer): string => (p.pod ? `${p.namespace}/${p.pod}` : p.address);

/** Where a flow leads: the name that the client asked for, where the address alone says little. */
export const destination = (f: Flow): string => (f.destination.pod ? undefined : f.egress?.name) ?? peer(f.destination);

export function port(f: Flow): string {
  if (f.icmp) return f.protocol + " " + f.icmp;
  return f.destination.port ? `${f.protocol} ${f.destination.port}` : f.protocol;
}

export function ruleText(r: Rule): string {
  const tier = r.tier && r.tier !== "default" ? " in tier " + r.tier : "";
  return [r.kind, r.name, r.detail].filter(Boolean).join(" ") + tier;
}

/** What a rule is found by among policies. */
export const ruleKey = (r: Rule): string => [r.kind, r.name ?? "", r.detail ?? "", r.kind === "default-deny" ? r.tier ?? "" : ""].join("|");

export function ruleHref(r: Rule, f: Filters): string {
  const q = queryOf(f);
  q.set("rule", ruleKey(r));
  return href("policies", q);
}

/** The question why a connection like this one is allowed or denied. */
export function whyHref(f: Flow): string {
  const end = (a: string) => (a.includes(":") ? `[${a}]` : a);
  const q = new URLSearchParams({ source: peer(f.source) });
  const to = f.asked ? f.asked : (f.destination.pod ? `pod/${f.destination.namespace}/${f.destination.pod}` : end(f.destination.address)) + (f.destination.port ? ":" + f.destination.port : "");
  q.set("target", to + "/" + (f.protocol.startsWith("icmp") ? "icmp" : f.protocol));
  return href("why", q);
}
