-- extend: lengthen leases, counted from now. Asks {items}: {seq, lease id, by or nil, progress's number or nil}.
-- Answers one letter per item, as settle does.
if repeated then
  return repeated
end
call('DEL', P .. 'none')
local seqs, receipts = {}, {}
for i, item in ipairs(asked[1]) do
  seqs[i] = item[1]
end
T.prefetch(seqs)
for i, item in ipairs(asked[1]) do
  local job = T.by_seq(item[1])
  if not job or job.state ~= 'running' or job.lease_id ~= item[2] then
    receipts[i] = 'L'
  else
    job.lease_until = now + (item[3] or job.lease)
    if item[4] then
      T.hput(KEY.progress, job.seq, ARGV[item[4]])
      job.progress = true
    end
    T.update(job)
    receipts[i] = job.cancel_requested and 'C' or 'O'
  end
end
return T.done(table.concat(receipts))
