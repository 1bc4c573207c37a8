-- fence: whether a lease still holds a job. Every settle and extend checks it, also on the fast path.
-- Repeats Ledger._held of domain/ledger.py.
local function is_held(state, lease_id, lease)
  return state == 'running' and lease_id == lease
end
