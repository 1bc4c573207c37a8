-- control_queue: write a queue's settings if they have not changed since they were read.
-- Takes {name, seen or nil, new}: settings as msgpack in ARGV 5 (seen, '' for none) and 6. Returns ok, stale or a refusal.
-- Repeats _control_queue of domain/rules/operate.py.
if repeated then
  return repeated
end
local name = args[1]
if (call('HGET', KEY.settings, name) or '') ~= ARGV[5] then
  return { 'stale' }
end
local row, new = T.queue(name), unpacked(ARGV[6])
local old = row.settings
if new.lanes ~= old.lanes and row.live > 0 then
  return { 'refused', { 'lanes_in_use', name, old.lanes or false, new.lanes or false, row.live } }
end
row.settings = new
T.hput(KEY.settings, name, ARGV[6])
if new.rate ~= old.rate or new.burst ~= old.burst then
  row.tokens, row.tokens_at = nil, nil
end
if new.fair_share ~= old.fair_share then
  row.taken = 0
end
if new.auto_retries > old.auto_retries then
  call('SADD', KEY.rearm, name)
elseif new.auto_retries < old.auto_retries then
  call('SREM', KEY.rearm, name)
end
T.put_queue(row)
local paused = {}
for _, lane in ipairs(old.paused_lanes) do
  paused[lane] = 1
end
for _, lane in ipairs(new.paused_lanes) do
  paused[lane] = (paused[lane] or 0) + 2
end
for lane, by in pairs(paused) do
  local line = by ~= 3 and T.line(name, 'l:' .. lane)
  if line then
    S.elect(line)
  end
end
T.wake(name, nil, row.waiting)
return T.done({ 'ok' })
