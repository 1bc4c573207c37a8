-- cursor_before: by halves, the cursor from which on the events since an instant come. Asks {instant}.
local counters = T.counters()
local low, high = counters.trimmed, counters.events
while low < high do
  local middle = floor((low + high) / 2)
  if T.instant_and_previous(T.in_block(middle + 1, 1)[1]) < asked[1] then
    low = middle + 1
  else
    high = middle
  end
end
return low
