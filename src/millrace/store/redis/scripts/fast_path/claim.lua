-- fast_path/claim: the fast path of claim, for jobs of one task and priority, without a lane, of a queue that allows it
-- (control.py). Only their leases and groups change, so it needs no tables. All other claims use claim.lua, which has the
-- same result for these jobs. Returns rows; or nil if the fast path does not apply, and then nothing has changed.
-- Repeats Ledger.claim of domain/ledger.py; allowance of domain/rules/limits.py; claim of domain/rules/transition.py; Step.claimed of domain/rules/step.py.
local function claim_fast()
  local queues, tasks, limit, lease_time, worker, claim_id = unpack(args, 1, 6)
  if #call('ZRANGEBYSCORE', P .. 'outside', '-inf', now, 'LIMIT', 0, 1) > 0
    or #call('ZRANGEBYSCORE', P .. 'expire', '-inf', now, 'LIMIT', 0, 1) > 0
    or call('EXISTS', P .. 'task') == 1 or limit <= 0 then
    return nil
  end
  local known = tasks and set_of(tasks)
  local queue, ready, names, seen = nil, nil, {}, {}
  for _, name in ipairs(queues) do
    if not seen[name] then
      seen[name] = true
      local settings = call('HGET', P .. 'settings', name)
      settings = settings and unpacked(settings)
      if settings and not settings.fast_claim and not settings.limited_claim then
        return nil
      end
      local most = limit
      if settings and settings.paused then
        most = 0
      elseif settings and settings.max_running then
        local row, running = call('HGET', P .. 'queue', name), 0
        if row then
          _, running = unpacked(row)
        end
        most = min(limit, settings.max_running - running)
      end
      for _, combo in ipairs(most > 0 and call('SMEMBERS', P .. 'combos:' .. name) or {}) do
        if not known or known[combo:match('^(.*):')] then
          local key = P .. 'r:' .. name .. ':' .. combo
          local found = call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, most)
          if #found > 0 then
            if queue then
              return nil
            end
            queue, ready, names = name, key, found
          end
        end
      end
    end
  end
  if not queue then
    return {}
  end
  local seqs, fields = {}, {}
  for i = 1, #names do
    seqs[i] = tonumber(names[i])
    fields[i] = field_of(names[i], seqs[i])
  end
  local records = call('HMGET', P .. 'job', unpack(fields))
  local number, untils = tonumber(call('HGET', P .. 'store', 'events') or 0), {}
  local first, events, written, leases, until_texts = number + 1, {}, {}, {}, {}
  local instant, packed_worker, queue_and_task, lease_heads = pack(now), pack(worker), nil, {}
  local kind, times, times_of, times_until = pack('claimed', now, 'running'), nil, nil, nil
  local places, holders, members, expiring = {}, {}, {}, {}
  for i = 1, #seqs do
    local record, seq = records[i], seqs[i]
    if not record then
      return nil
    end
    local _, id, _, _, task, _, lease, _, _, group, _, _, _, _, _, _, _, generation, state, enqueued_at, available_at,
      n, _, attempt, _, _, _, _, _, _, _, rare, last_event = cmsgpack.unpack_limit(record, 40, 2)
    local packed_rare = '\192'
    if rare then
      packed_rare = expiry_of(rare)
    end
    if not packed_rare or state ~= 'waiting' then
      return nil
    end
    if packed_rare ~= '\192' then
      expiring[#expiring + 1] = names[i]
    end
    if group then
      places[#places + 1], holders[#holders + 1], members[#members + 1] = place_of(queue, group), seq, names[i]
    end
    number, attempt, n = number + 1, attempt + 1, n + 1
    lease = lease_time or lease
    local field = fields[i]
    if not untils[lease] then
      untils[lease], until_texts[lease] = pack(now + lease), format('%.0f', now + lease)
    end
    local lease_head = lease_heads[#field]
    if not lease_head then
      local packed = pack(claim_id .. '.' .. field)
      lease_head = sub(packed, 1, #packed - #field)
      lease_heads[#field] = lease_head
    end
    if times_of ~= enqueued_at or times_until ~= available_at then
      times, times_of, times_until = pack(enqueued_at, available_at), enqueued_at, available_at
    end
    queue_and_task = queue_and_task or pack(queue, task) -- all jobs are of one task
    generation, n, attempt = small(generation), small(n), small(attempt)
    -- In the order of lib/events.lua and lib/jobs.lua.
    events[i] = pack(id) .. queue_and_task .. generation .. n .. kind .. attempt .. '\0' .. pack(last_event)
      .. packed_worker
      .. lease_head .. field .. '\192\192\192\192' .. pack(seq)
    record = sub(record, 1, byte(record, 1) * 256 + byte(record, 2) + 2) .. generation .. '\167running' .. times .. n
      .. '\194' .. attempt .. instant .. packed_worker .. lease_head .. field .. untils[lease] .. '\192\192\194' .. packed_rare
      .. pack(number)
    records[i] = record
    written[2 * i - 1], written[2 * i] = field, record
    leases[2 * i - 1], leases[2 * i] = until_texts[lease], names[i]
  end
  local lines = hold_lines(places, holders)
  if not lines then
    return nil
  end
  local rows, bodies = {}, call('HMGET', P .. 'spec', unpack(fields))
  each_part(names, 'ZREM', ready)
  each_part(expiring, 'ZREM', P .. 'expire')
  for i = 1, #places do
    call('ZREM', P .. 'm:' .. places[i], members[i])
  end
  each_part(lines, 'HSET', P .. 'line', 2)
  each_part(written, 'HSET', P .. 'job', 2)
  each_part(leases, 'ZADD', P .. 'lease', 2)
  push_events(events, first)
  call('HSET', P .. 'store', 'events', number)
  add_to_queue(queue, -#seqs, #seqs, 0, 0, #seqs)
  store_reply(seqs)
  for i = 1, #seqs do
    local at = 4 * i
    rows[at - 3], rows[at - 2], rows[at - 1], rows[at] = seqs[i], records[i], bodies[i], false
  end
  return rows
end

if not repeated and args[3] <= 1000 then
  local rows = claim_fast()
  if rows then
    return rows
  end
end
