-- extend: extend leases, counted from now. Takes {items}: {seq, lease id, by or nil, indexes of the bodies of
-- progress and log, or nil}.
-- Returns one letter per item, as settle does.
-- Repeats Ledger.extend of domain/ledger.py.
if repeated then
  return repeated
end
call('DEL', P .. 'none')
local seqs, receipts = {}, {}
for i, item in ipairs(args[1]) do
  seqs[i] = item[1]
end
T.prefetch(seqs)
for i, item in ipairs(args[1]) do
  local job = T.held(item[1], item[2])
  if not job then
    receipts[i] = 'L'
  else
    job.lease_until = now + (item[3] or job.lease)
    if item[4] then
      T.hput(KEY.progress, job.seq, ARGV[item[4]])
      job.progress = true
    end
    if item[5] then
      X.put_log(job, ARGV[item[5]])
    end
    T.update(job)
    receipts[i] = job.cancel_requested and 'C' or 'O'
  end
end
return T.done(table.concat(receipts))
