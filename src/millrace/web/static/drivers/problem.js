// A refusal: what happened, and what to do next. Every driver throws these, in the shape of RFC 9457.

export class Problem extends Error {
  constructor({ title = "Problem", status = 0, code = "problem", detail = "", ...more }) {
    super(detail || title);
    this.name = "Problem";
    Object.assign(this, { title, status, code, detail: detail || title, more });
  }
}

/** Whether the request was aborted because the page no longer needs the answer. */
export function wasAborted(error) {
  return error?.name === "AbortError";
}
