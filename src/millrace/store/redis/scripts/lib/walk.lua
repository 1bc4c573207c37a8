-- walk: jobs by seq, over queues and kinds of states, from the index that is narrow enough.
local PAGE = 500

function W.queues()
  local names = call('HKEYS', KEY.queue)
  table.sort(names)
  return names
end

local function page_of(source, back)
  local low, high = format('%.0f', source.base + source.after), format('%.0f', source.base + source.before)
  local found
  if back then
    found = call('ZREVRANGEBYSCORE', source.key, '(' .. high, '(' .. low, 'LIMIT', 0, PAGE)
  else
    found = call('ZRANGEBYSCORE', source.key, '(' .. low, '(' .. high, 'LIMIT', 0, PAGE)
  end
  for i = 1, #found do
    found[i] = tonumber(found[i])
  end
  source.page, source.first, source.last = found, 1, #found < PAGE
  if #found > 0 then
    if back then
      source.before = found[#found]
    else
      source.after = found[#found]
    end
  end
end

-- At most `limit` seqs between two (both left out), in order, of all these sources together.
function W.merged(sources, after, before, back, limit)
  for _, source in ipairs(sources) do
    source.after, source.before = after, before
    page_of(source, back)
  end
  local found = {}
  while #found < limit do
    local best = nil
    for _, source in ipairs(sources) do
      if source.first > #source.page and not source.last then
        page_of(source, back)
      end
      local seq = source.page[source.first]
      if seq and (not best or (back and seq > best.page[best.first]) or (not back and seq < best.page[best.first])) then
        best = source
      end
    end
    if not best then
      break
    end
    found[#found + 1] = best.page[best.first]
    best.first = best.first + 1
  end
  return found
end

-- The index of a queue by classes of states: 0 live, 1 completed, 2 dead, 3 cancelled.
function W.sources(queues, classes)
  local sources = {}
  for _, queue in ipairs(queues) do
    for _, class in ipairs(classes) do
      sources[#sources + 1] = { key = T.look(P .. 'q:' .. queue), base = class * 2 ^ 50 }
    end
  end
  return sources
end
