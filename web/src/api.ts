// SPDX-License-Identifier: Apache-2.0
// Asks the server. The token comes in the fragment of the address, which browsers send to nobody,
// and is kept for this tab and this origin alone.

import { useEffect, useState } from "preact/hooks";

const key = "weir-token";

let refused = false;
const listeners = new Set<(refused: boolean) => void>();

function note(now: boolean): void {
  if (now === refused) return;
  refused = now;
  listeners.forEach((f) => f(now));
}

/** Whether the server does not know who asks, by its last answer. */
export function useRefused(): boolean {
  const [now, set] = useState(refused);
  useEffect(() => {
    set(refused);
    listeners.add(set);
    return () => void listeners.delete(set);
  }, []);
  return now;
}

/** Takes the token out of the address, so that it is in no history. */
export function takeToken(): void {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    sessionStorage.setItem(key, token);
    history.replaceState(null, "", location.pathname + location.search);
  }
}

async function call(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set("Authorization", "Bearer " + (sessionStorage.getItem(key) ?? ""));
  let answer: Response;
  try {
    answer = await fetch(path, { ...init, headers, credentials: "omit", cache: "no-store" });
  } catch (e) {
    if (init.signal?.aborted) throw e;
    throw new Error("the server does not answer: has weir ui ended?");
  }
  note(answer.status === 401);
  if (answer.ok) return answer;
  let message = answer.statusText;
  try {
    message = (await answer.json()).error ?? message;
  } catch { /* the status says enough */ }
  throw new Error(message);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await call(path, { signal })).json();
}

export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return (await call(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal })).json();
}

/** Gives each JSON value of an answer that has one a line. */
export async function lines(path: string, give: (value: any) => void, signal?: AbortSignal): Promise<void> {
  const answer = await call(path, { signal });
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop()!;
    for (const line of parts) give(JSON.parse(line));
  }
  if (rest) throw new Error("the answer ended early");
}
