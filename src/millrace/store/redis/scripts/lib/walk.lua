-- walk: jobs by seq, over queues and classes of states, from the smallest sufficient index.
local FEWEST, MOST = 16, 500 -- seqs read from one source at a time

function W.queues()
  local names = call('HKEYS', KEY.queue)
  table.sort(names)
  return names
end

local function page_of(source, back)
  local low, high = format('%.0f', source.base + source.after), format('%.0f', source.base + source.before)
  local found
  if back then
    found = call('ZREVRANGEBYSCORE', source.key, '(' .. high, '(' .. low, 'LIMIT', 0, source.size)
  else
    found = call('ZRANGEBYSCORE', source.key, '(' .. low, '(' .. high, 'LIMIT', 0, source.size)
  end
  seqs_of(found)
  source.page, source.first, source.last = found, 1, #found < source.size
  source.size = math.min(MOST, source.size * 2)
  if #found > 0 then
    if back then
      source.before = found[#found]
    else
      source.after = found[#found]
    end
  end
end

-- Start to read the sources between two seqs (both exclusive). First pages are small: the caller needs about `wanted`.
function W.open(sources, after, before, back, wanted)
  for _, source in ipairs(sources) do
    source.after, source.before = after, before
    source.size = math.max(FEWEST, math.min(MOST, math.ceil(2 * wanted / #sources)))
    page_of(source, back)
  end
end

-- The next seqs of all sources, merged in order; fewer than `limit` at the end.
function W.take(sources, back, limit)
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

-- At most `limit` seqs between two (both exclusive) of all sources, merged in order.
function W.merged(sources, after, before, back, limit)
  W.open(sources, after, before, back, limit)
  return W.take(sources, back, limit)
end

-- The running jobs, in order, from the index of leases, which has no more entries than workers have slots.
function W.running(after, before, back)
  local seqs = {}
  for _, name in ipairs(call('ZRANGE', T.look(KEY.lease), 0, -1)) do
    local seq = tonumber(name)
    if seq > after and seq < before then
      seqs[#seqs + 1] = seq
    end
  end
  table.sort(seqs, function(a, b)
    if back then
      return a > b
    end
    return a < b
  end)
  return { { page = seqs, first = 1, last = true } }
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
