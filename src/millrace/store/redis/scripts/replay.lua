-- replay: return finished jobs to waiting. Takes {ids, whether to replay their children too}; returns a word per id.
-- Repeats replay of domain/rules/replaying.py.
if repeated then
  return repeated
end
T.prefetch_ids(args[1])
local answers, back = {}, {}
for i, id in ipairs(args[1]) do
  answers[i] = U.replay(id)
  if answers[i] == 'replayed' then
    back[#back + 1] = id
  end
end
if args[2] then
  U.bring_children_back(back)
end
return T.done(answers)
