// Requests to the worker, with the token from the tab's session storage.

export function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { authorization: `Bearer ${token}` } : {};
}

export function query(path, given) {
  const known = Object.entries(given).filter(([, value]) => value !== undefined && value !== "");
  return known.length ? `${path}?${new URLSearchParams(known)}` : path;
}

/** Send a request; a body makes it a POST. */
export async function request(path, body) {
  const sent = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const type = body === undefined ? {} : { "content-type": "application/json" };
  const answer = await fetch(path, { ...sent, headers: { ...headers(), ...type } }).catch(() => {
    throw new Error("The worker does not answer");
  });
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(data.error ?? `The worker answered with status ${answer.status}`);
  return data;
}
