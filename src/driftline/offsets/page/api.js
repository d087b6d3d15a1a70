// The one way to the service: problem documents become errors, the token stays out of every address.

const KEY = "driftline-token";

/** A problem document, or that there was no answer at all. */
export class Problem extends Error {
  constructor(status, detail, remedy) {
    super(remedy ? `${detail}: ${remedy}` : detail);
    this.status = status;
  }
}

let token = sessionStorage.getItem(KEY) || "";

/** Take the token from the address's fragment, which no server sees, and remove it from there. */
export function takeTokenFromFragment() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    useToken(found);
    history.replaceState(null, "", location.pathname + location.search);
  }
}

export function useToken(value) {
  token = value;
  sessionStorage.setItem(KEY, value);
}

/** Ask for a path; returns {body, tag, stale}. The browser's cache answers a 304 for us. */
export async function ask(path) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let answer;
  try {
    answer = await fetch(path, { headers, cache: "no-cache", signal: AbortSignal.timeout(10_000) });
  } catch {
    throw new Problem(0, "the service does not answer", "is `driftline offsets serve` running?");
  }
  if (!answer.ok) {
    const problem = await answer.json().catch(() => ({}));
    throw new Problem(answer.status, problem.detail || answer.statusText, problem.remedy || "");
  }
  const body = await answer.json().catch(() => {
    throw new Problem(0, "the service's answer broke off", "is it still running?");
  });
  return {
    body,
    tag: answer.headers.get("ETag"),
    stale: answer.headers.get("Driftline-Stale") === "true",
  };
}
