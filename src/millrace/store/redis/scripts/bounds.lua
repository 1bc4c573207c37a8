-- bounds: returns {smallest seq of an existing job or 0, last seq assigned}.
local first = nil
for _, name in ipairs(W.queues()) do
  for class = 0, 3 do
    local low = format('%.0f', class * 2 ^ 50)
    local found = call('ZRANGEBYSCORE', P .. 'q:' .. name, low, '+inf', 'LIMIT', 0, 1)
    local seq = found[1] and tonumber(found[1])
    first = seq and min(first or seq, seq) or first
  end
end
return { first or 0, T.counters().seq }
