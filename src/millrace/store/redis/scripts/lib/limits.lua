-- limits: how many jobs may start now under pause, `max_running` and `rate`. Computed before any job is read.
-- Repeats allowance, spend, is_ahead and next_token of domain/rules/limits.py.
L.UNLIMITED = 2 ^ 52

local function capacity(limits)
  return limits.burst or max(1, ceil(limits.rate or 0))
end

-- Whether the bucket is dated in the future, because the clock was set back. Then it is written with the current time.
function L.is_ahead(row)
  return row.tokens ~= nil and row.tokens_at > now
end

-- The tokens in the bucket now. A clock that jumps back adds none; one that jumps forward fills the bucket at most.
local function refill(row, limits)
  local size = capacity(limits)
  if not row.tokens then
    return size
  end
  return min(size, row.tokens + max(0, now - row.tokens_at) * (limits.rate or 0) / 1000)
end

function L.allowance(limits, row)
  if limits.paused then
    return 0
  end
  local allowed = L.UNLIMITED
  if limits.max_running then
    allowed = max(0, limits.max_running - row.running)
  end
  if limits.rate then
    allowed = min(allowed, floor(refill(row, limits) + 1e-9))
  end
  return allowed
end

function L.spend(row, limits, taken)
  if not limits.rate then
    row.tokens, row.tokens_at = nil, nil
  else
    row.tokens, row.tokens_at = max(0, refill(row, limits) - taken), now
  end
end

function L.next_token(limits, row)
  if not limits.rate then
    return now
  end
  local missing = 1 - refill(row, limits)
  return missing <= 1e-9 and now or now + ceil(missing * 1000 / limits.rate)
end
