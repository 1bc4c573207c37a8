-- history: the events of all generations of an id that are kept, oldest first. Takes {id}.
local chains, job = {}, T.by_id(args[1])
for _, past in ipairs(T.past(args[1])) do
  chains[#chains + 1] = past
end
if job then
  chains[#chains + 1] = job
end
table.sort(chains, function(a, b)
  return a.seq < b.seq
end)
local events, trimmed = {}, T.counters().trimmed
for _, chain in ipairs(chains) do
  local number, own = chain.last_event, {}
  while number > trimmed do
    local event = T.in_block(number, 1)[1]
    own[#own + 1] = event
    local _, previous = T.instant_and_previous(event)
    number = previous
  end
  for i = #own, 1, -1 do
    events[#events + 1] = own[i]
  end
end
return events
