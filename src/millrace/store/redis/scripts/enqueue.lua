-- enqueue: enqueue all of these specs, or none. Takes {specs}; returns one list per spec, or {refusal}.
-- Repeats enqueue of domain/rules/admission.py.
if repeated then
  return repeated
end
local answers, refused = A.attempt(A.enqueue, A.specs(args[1]), false)
if refused then
  return { 'refused', refused }
end
return T.done(answers)
