-- feed: {trimmed, newest, events after a cursor}. Asks {after or nil for the oldest kept, limit}.
local counters = T.counters()
local after = asked[1] or counters.trimmed
local events = {}
if after >= counters.trimmed then
  events = T.events_after(after, asked[2])
end
return { counters.trimmed, counters.events, events }
