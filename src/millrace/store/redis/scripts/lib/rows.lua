-- rows: jobs as scripts return them, four values each: seq, record, spec, and the values stored separately, or false.
local function blob_of(key, has, seq)
  return has and T.hget(key, seq) or false
end

function T.rows_of(jobs)
  local rows = {}
  for first = 1, #jobs, MOST do
    local last, seqs = min(#jobs, first + MOST - 1), {}
    for i = first, last do
      seqs[#seqs + 1] = jobs[i].seq
    end
    local bodies = call('HMGET', KEY.spec, unpack(seqs))
    for i = first, last do
      local job, more = jobs[i], false
      local seq = job.seq
      if job.result or job.error or job.attempts or job.progress or job.log or job.lost_worker ~= nil then
        more = { blob_of(KEY.result, job.result, seq), blob_of(KEY.error, job.error, seq),
          job.attempts and call('LRANGE', P .. 'attempts:' .. seq, 0, -1) or false,
          blob_of(KEY.progress, job.progress, seq), blob_of(KEY.log, job.log, seq) }
        if job.lost_worker ~= nil then
          more[6] = job.lost_worker and 1 or 0
        end
      end
      rows[#rows + 1] = seq
      rows[#rows + 1] = job.record
      rows[#rows + 1] = bodies[i - first + 1]
      rows[#rows + 1] = more
    end
  end
  return rows
end

-- A lease id is the claim id and the job's seq, so no two claims share one. fast_path/claim.lua packs the same text.
function T.lease_id(claim_id, seq)
  return claim_id .. '.' .. format('%.0f', seq)
end

-- The reply to a repeated claim or reclaim: the jobs that it still holds. `lost` says for each whether its worker is gone.
function T.rows_of_claim(claim_id, seqs, lost)
  local jobs = {}
  for i, seq in ipairs(seqs) do
    local job = T.held(seq, T.lease_id(claim_id, seq))
    if job then
      job.lost_worker = lost and lost[i] == 1
      jobs[#jobs + 1] = job
    end
  end
  return T.rows_of(jobs)
end
