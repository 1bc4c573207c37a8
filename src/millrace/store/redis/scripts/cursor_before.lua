-- cursor_before: the cursor before the events since an instant, by binary search. Takes {instant}.
-- Repeats cursor_before of domain/feed.py.
local counters = T.counters()
local low, high = counters.trimmed, counters.events
while low < high do
  local middle = floor((low + high) / 2)
  if T.instant_and_previous(T.in_block(middle + 1, 1)[1]) < args[1] then
    low = middle + 1
  else
    high = middle
  end
end
return low
