// SPDX-License-Identifier: Apache-2.0
// Asks the server. The token of weir ui comes in the fragment of the address, which browsers send to
// nobody, and is kept for this tab and this origin alone. Where users log in there is a cookie
// instead, which no script reads.

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

/** Who is logged in, where users log in; user is empty while nobody is. oidc: they log in at an issuer, too. */
export interface Session { login: boolean; oidc?: boolean; user?: string }

let session: Session | undefined;

/** Who is logged in; undefined while that is asked. */
export function useSession(): Session | undefined {
  const [now, set] = useState(session);
  useEffect(() => {
    const f = () => set(session);
    sessions.add(f);
    f(); // the answer may have come before
    return () => void sessions.delete(f);
  }, []);
  return now;
}

const sessions = new Set<() => void>();

function become(now: Session): void {
  session = now;
  refused = false;
  sessions.forEach((f) => f());
  listeners.forEach((f) => f(false));
}

/** Asks who is logged in. */
export async function askSession(): Promise<void> {
  try {
    become(await get<Session>(sessionPath));
  } catch {
    become({ login: false }); // what is asked next says why
  }
}

const sessionPath = "/api/session";

/** Where a browser logs in at the issuer. */
export const oidcPath = "/api/session/oidc";

const failures: Record<string, string> = {
  begun: "That log-in was begun in another browser, or too long ago. Begin again.",
  refused: "The issuer did not log you in.",
  token: "You are logged in at the issuer, but the API server of the cluster does not take its token.",
  away: "The issuer, or the API server of the cluster, does not answer. Try again.",
};

/** Why the browser came back from the issuer without a log-in; empty = it did not. Takes it out of the address. */
export function takeFailure(): string {
  const why = failures[new URLSearchParams(location.hash.slice(1)).get("login") ?? ""] ?? "";
  if (why) history.replaceState(null, "", location.pathname + location.search);
  return why;
}

/** Logs in by a token of the API server, which is kept nowhere here. */
export async function logIn(token: string): Promise<void> {
  become(await (await send(sessionPath, { method: "POST", body: JSON.stringify({ token }), headers: { "Content-Type": "application/json" } })).json());
}

export async function logOut(): Promise<void> {
  await send(sessionPath, { method: "DELETE" });
  location.reload(); // nothing of what was seen stays
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
  try {
    const answer = await send(path, init);
    note(false);
    return answer;
  } catch (e) {
    if ((e as { status?: number }).status === 401) note(true);
    throw e;
  }
}

async function send(path: string, init: RequestInit): Promise<Response> {
  const headers = new Headers(init.headers);
  const token = sessionStorage.getItem(key);
  if (token && !session?.login) headers.set("Authorization", "Bearer " + token);
  let answer: Response;
  try {
    answer = await fetch(path, { ...init, headers, credentials: "same-origin", cache: "no-store" });
  } catch (e) {
    if (init.signal?.aborted) throw e;
    throw new Error(session?.login ? "the server does not answer" : "the server does not answer: has weir ui ended?");
  }
  if (answer.ok) return answer;
  let message = answer.statusText;
  try {
    message = (await answer.json()).error ?? message;
  } catch { /* the status says enough */ }
  throw Object.assign(new Error(message), { status: answer.status });
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
