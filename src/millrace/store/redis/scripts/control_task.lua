-- control_task: write a task's limits if they have not changed since they were read; its running jobs are counted from
-- then on. Takes {name}: limits as msgpack in ARGV 5 (seen, '' for none) and 6; returns ok or stale.
-- Repeats _control_task of domain/rules/operate.py.
if repeated then
  return repeated
end
local PAGE = 1000
local name = args[1]

local function running_of_task()
  local count, offset = 0, 0
  while true do
    local page = seqs_of(call('ZRANGE', KEY.lease, offset, offset + PAGE - 1))
    T.prefetch(page)
    for _, seq in ipairs(page) do
      local job = T.by_seq(seq)
      if job and job.task == name then
        count = count + 1
      end
    end
    if #page < PAGE then
      return count
    end
    offset = offset + PAGE
  end
end

if (call('HGET', P .. 'limits', name) or '') ~= ARGV[5] then
  return { 'stale' }
end
local row = T.task(name) or { name = name, running = running_of_task(), limits = {} }
local old = row.limits
row.limits = unpacked(ARGV[6])
if row.limits.rate ~= old.rate or row.limits.burst ~= old.burst then
  row.tokens, row.tokens_at = nil, nil
end
T.put_task(row)
T.hput(P .. 'limits', name, ARGV[6])
T.wake(nil, name, 2 ^ 30)
return T.done({ 'ok' })
