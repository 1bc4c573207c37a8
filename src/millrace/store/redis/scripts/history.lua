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
local events = {}
for _, chain in ipairs(chains) do
  for _, event in ipairs(T.events_back(chain.last_event)) do
    events[#events + 1] = event
  end
end
return events
