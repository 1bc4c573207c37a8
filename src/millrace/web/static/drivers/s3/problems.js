// Messages for refusals: what happened, and what to do next.

import { Problem } from "../problem.js";

export { Problem };

export function refused(status, code, detail, more = {}) {
  return new Problem({ status, code, detail, ...more });
}

const CAUSES = {
  NoSuchBucket: "The bucket does not exist. Correct its name, or create it with `millrace init`.",
  AccessDenied:
    "Access was denied. These credentials need to list the bucket and to get its objects; to replay and archive, also to put them.",
  InvalidAccessKeyId: "The server does not know this access key. Sign in with another one.",
  SignatureDoesNotMatch: "The signature was refused: the secret key or the region is not the right one. Sign in again.",
  AuthorizationHeaderMalformed: "The signature was refused: most likely the region is another one. Sign in again.",
  ExpiredToken: "The session token has expired. Sign in with new credentials.",
  InvalidToken: "The session token is not valid. Sign in with the token that came with these keys.",
  RequestTimeTooSkewed: "This machine's clock is too far from the server's. Set it, and reload the page.",
  PermanentRedirect: "The bucket is in another region, or has another address. Correct the region.",
  NotImplemented: "The server does not support this request. Conditional writes and versions are needed.",
};
const SIGN_IN_AGAIN = new Set([
  "InvalidAccessKeyId",
  "SignatureDoesNotMatch",
  "AuthorizationHeaderMalformed",
  "ExpiredToken",
  "InvalidToken",
]);

/** What an answer of the bucket that is no success means. */
export function refusal(status, code, message, what) {
  const said = CAUSES[code] ?? `${code || `HTTP ${status}`}${message ? `: ${message}` : ""}`;
  const kind = SIGN_IN_AGAIN.has(code) ? "credentials" : code === "NoSuchBucket" ? "bucket_missing" : "store";
  return refused(kind === "credentials" ? 401 : status, kind, said, { said: code, what });
}

/** No response. A browser does not say why: the server cannot be reached, or it does not allow this page (CORS). */
export function silence(endpoint, foreign) {
  const detail = foreign
    ? `${endpoint} could not be reached, or does not let pages of ${location.origin} use the bucket (CORS), or refused ` +
      `these keys with a response that this page cannot read. Check address and keys; then: ` +
      `millrace init --origin ${location.origin}`
    : `${endpoint} could not be reached. Check the network; the page tries again.`;
  return refused(503, foreign ? "cors" : "unreachable", detail);
}
